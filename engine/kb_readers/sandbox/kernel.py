"""System calls that Python's library lacks, through ctypes, and their errors."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import NamedTuple

_REASONS = {
    errno.ENOSYS: "the kernel lacks it, or a container refuses it",
    errno.EPERM: "a container or the system's policy refuses it",
    errno.EACCES: "a container or the system's policy refuses it",
    errno.EOPNOTSUPP: "it was switched off when the kernel started",
    errno.EINVAL: "the kernel was built without it",
}


class NotAvailable(Exception):
    """The system lacks a feature; the message has the reason."""


class Machine(NamedTuple):
    """Constants of a processor architecture; `audit` is its AUDIT_ARCH number."""

    name: str
    audit: int
    seccomp: int


MACHINES = {"x86_64": Machine("x86_64", 0xC000003E, 317), "aarch64": Machine("aarch64", 0xC00000B7, 277)}


def machine() -> Machine:
    """Return the architecture of this process. Raises NotAvailable: another system or processor."""
    if sys.platform != "linux":
        raise NotAvailable("this system is not Linux")
    name = os.uname().machine
    if name not in MACHINES or sys.maxsize < 1 << 32:
        raise NotAvailable(f"not known for this processor ({name})")
    return MACHINES[name]


def buffer(data: bytes) -> ctypes.Array[ctypes.c_char]:
    """Return a buffer of bytes for a system call to read or write."""
    return ctypes.create_string_buffer(data, len(data))


def syscall(number: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> int:
    """Return the result of a system call. Raises NotAvailable with the reason."""
    library = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    answer = int(library.syscall(ctypes.c_long(number), *words))
    if answer < 0:
        raise refused(ctypes.get_errno())
    return answer


def prctl(option: int, value: int) -> None:
    """Call prctl. Raises NotAvailable with the reason."""
    library = ctypes.CDLL(None, use_errno=True)
    zeros = [ctypes.c_ulong(0)] * 3
    if library.prctl(option, ctypes.c_ulong(value), *zeros) != 0:
        raise refused(ctypes.get_errno())


def refused(number: int) -> NotAvailable:
    return NotAvailable(
        f"{_REASONS.get(number, os.strerror(number))} ({errno.errorcode.get(number, number)})"
    )
