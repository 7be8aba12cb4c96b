"""A filter of system calls: the calls needed for reading are allowed, all other calls fail.

Calls in no table fail with ENOSYS, as if the kernel lacked them: libraries then fall back (from `clone3` to
`clone` for a thread). Calls with arguments that are not allowed fail with EPERM. The filter is a program for
the kernel's classic BPF (`seccomp(2)`); it sees the numbers in the arguments, and not the memory that they
point to.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kb_readers.sandbox import kernel

# By processor, x86_64 and aarch64, the most frequent first: a call is compared with one after another.
# aarch64 lacks calls that newer ones replaced.
_FREE: dict[str, tuple[int | None, int | None]] = {
    "newfstatat": (262, 79), "read": (0, 63), "mmap": (9, 222), "munmap": (11, 215), "lseek": (8, 62),
    "close": (3, 57), "fstat": (5, 80), "futex": (202, 98), "getdents64": (217, 61), "brk": (12, 214),
    "mprotect": (10, 226), "madvise": (28, 233), "mremap": (25, 216), "stat": (4, None), "lstat": (6, None),
    "statx": (332, 291), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "mincore": (27, 232), "fadvise64": (221, 223), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sigaltstack": (131, 132), "restart_syscall": (219, 128),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getdents": (78, None), "getcwd": (79, 17), "statfs": (137, 43),
    "fstatfs": (138, 44), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "poll": (7, None),
    "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123), "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getuid": (102, 174),
    "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getrlimit": (97, 163),
    "getrusage": (98, 165), "getpriority": (140, 141), "sysinfo": (99, 179), "uname": (63, 160),
    "getitimer": (36, 102), "setitimer": (38, 103), "futex_waitv": (449, 449), "set_robust_list": (273, 99),
    "get_robust_list": (274, 100), "set_tid_address": (218, 96), "rseq": (334, 293),
    "arch_prctl": (158, None), "membarrier": (324, 283), "getrandom": (318, 278), "getcpu": (309, 168),
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
_BOUND: dict[str, tuple[int | None, int | None]] = {
    "openat": (257, 56), "open": (2, None), "clone": (56, 220), "ioctl": (16, 29), "fcntl": (72, 25),
    "prctl": (157, 167), "prlimit64": (302, 261), "tgkill": (234, 131),
}  # fmt: skip

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0o20000000  # O_TMPFILE's own
_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020080  # of users, processes, networks, mounts and so on
_TERMINAL_QUESTIONS = (0x5401, 0x5413, 0x541B)  # TCGETS, TIOCGWINSZ, FIONREAD
_CLOSED_ON_EXEC = (0x5450, 0x5451)
_DUPLICATE_AND_FLAGS = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD to F_SETFL, F_DUPFD_CLOEXEC
_NAMES = (15, 16, 0x53564D41)  # names of threads and of memory areas

# BPF: load a word of the call, mask it, compare and jump, return.
_LOAD, _AND, _EQUAL, _ANSWER = 0x20, 0x54, 0x15, 0x06
_INSTRUCTION = struct.Struct("<HBBI")
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_SET_FILTER = 1
_EVERY_BIT = 0xFFFFFFFF


class Instruction(NamedTuple):
    """One instruction of the program; both jumps are relative to the next one."""

    code: int
    if_equal: int
    otherwise: int
    operand: int


class _Test(NamedTuple):
    """A condition: half of an argument, masked, is one of these values."""

    argument: int
    values: Sequence[int]
    mask: int = _EVERY_BIT
    upper_half: bool = False


def restrict() -> None:
    """Restrict this thread to a reader's system calls; needs no_new_privs. Raises NotAvailable."""
    here = kernel.machine()
    code = b"".join(_INSTRUCTION.pack(*each) for each in program(here, os.getpid()))
    instructions = kernel.buffer(code)
    # struct sock_fprog: the length, and the address; native alignment adds the padding between them.
    header = struct.pack("@HP", len(code) // _INSTRUCTION.size, ctypes.addressof(instructions))
    kernel.syscall(here.seccomp, _SET_FILTER, 0, kernel.buffer(header))


def program(machine: kernel.Machine, process: int) -> list[Instruction]:
    """Return the filter for a process on this machine."""
    tests: dict[str, Sequence[_Test]] = {
        "openat": (_Test(2, (0,), _WRITING),),
        "open": (_Test(1, (0,), _WRITING),),
        "clone": (_Test(0, (_CLONE_THREAD,), _CLONE_THREAD | _CLONE_NAMESPACES),),
        "ioctl": (_Test(1, (*_TERMINAL_QUESTIONS, *_CLOSED_ON_EXEC)),),
        "fcntl": (_Test(1, _DUPLICATE_AND_FLAGS),),
        "prctl": (_Test(0, _NAMES),),
        "prlimit64": (_Test(2, (0,)), _Test(2, (0,), upper_half=True)),  # query only
        "tgkill": (_Test(0, (process,)),),
    }
    column = list(kernel.MACHINES).index(machine.name)
    code = [
        Instruction(_LOAD, 0, 0, _ARCHITECTURE),
        Instruction(_EQUAL, 1, 0, machine.audit),
        Instruction(_ANSWER, 0, 0, _KILL),
        Instruction(_LOAD, 0, 0, _NUMBER),
    ]
    for name, numbers in (*_FREE.items(), *_BOUND.items()):
        if (number := numbers[column]) is not None:
            then = [each for test in tests.get(name, ()) for each in _passed(test)]
            then.append(Instruction(_ANSWER, 0, 0, _ALLOW))
            code += (Instruction(_EQUAL, 0, len(then), number), *then)
    code.append(Instruction(_ANSWER, 0, 0, _REFUSE | errno.ENOSYS))
    return code


def _passed(test: _Test) -> Iterator[Instruction]:
    """Yield instructions that refuse the call unless the test holds."""
    yield Instruction(_LOAD, 0, 0, _ARGUMENTS + 8 * test.argument + 4 * test.upper_half)
    yield Instruction(_AND, 0, 0, test.mask)
    for left, value in zip(range(len(test.values), 0, -1), test.values, strict=True):
        yield Instruction(_EQUAL, left, 0, value)  # jumps past the other values and the refusal
    yield Instruction(_ANSWER, 0, 0, _REFUSE | errno.EPERM)
