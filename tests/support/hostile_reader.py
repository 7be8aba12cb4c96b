"""A reader that a hostile file has taken over: it tries all that a program may try, and reports successes.

Its input names the targets, all of which belong to the test. The signal it sends has no effect, and the
process it starts ends at once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from kb_readers.model import Context, Extraction, Page
from tests.support.patience import ANSWER_SECONDS


class Targets(msgspec.Struct):
    """Targets of the attempts; all belong to the test. `folder` holds the base and the keys.

    `process` runs as the engine's user; it may be stopped, because a traced process stops.
    """

    folder: str
    base: str
    keys: str
    tcp_port: int
    udp_port: int
    unix_socket: str
    abstract_socket: str
    process: int


Attempt = Callable[[Targets], object]
ATTEMPTS: dict[str, Attempt] = {}
"""Attempts by name, in the words of the documentation."""

_NUMBERS = {  # numbers of system calls without a function in Python: x86_64, aarch64
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "mount": (165, 40),
    "process_vm_readv": (310, 270),
    "ptrace": (101, 117),
    "shmget": (29, 194),
    "unshare": (272, 97),
}
_PTRACE_SEIZE, _CLONE_NEWUSER, _CLONE_NEWNET, _NEW_SEGMENT = 0x4206, 0x10000000, 0x40000000, 0o1600


def read_hostile(data: bytes, _context: Context) -> Extraction:
    """Return JSON: the error of each attempt by name, or an empty string if it succeeded."""
    targets = msgspec.json.decode(data, type=Targets)
    outcomes: dict[str, str] = {}
    for name, attempt in ATTEMPTS.items():
        try:
            attempt(targets)
        except (OSError, ValueError, RuntimeError, subprocess.SubprocessError) as error:
            outcomes[name] = f"{type(error).__name__}: {error}"
        else:
            outcomes[name] = ""
    return Extraction(
        [Page(None, msgspec.json.encode(outcomes).decode())], None, "text_extraction", "text/plain"
    )


def _attempt(name: str) -> Callable[[Attempt], Attempt]:
    def add(attempt: Attempt) -> Attempt:
        ATTEMPTS[name] = attempt
        return attempt

    return add


def _syscall(name: str, *arguments: int | ctypes.Array[ctypes.c_char]) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    number = _NUMBERS[name][platform.machine() == "aarch64"]
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    answer = int(library.syscall(ctypes.c_long(number), *words))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


# --- the network ----------------------------------------------------------------------------------


@_attempt("connect over TCP")
def _(targets: Targets) -> None:
    socket.create_connection(("127.0.0.1", targets.tcp_port), timeout=ANSWER_SECONDS).close()


@_attempt("listen on a TCP port")
def _(targets: Targets) -> None:
    socket.create_server(("127.0.0.1", 0)).close()


@_attempt("send over UDP")
def _(targets: Targets) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", targets.udp_port))


@_attempt("connect to a UNIX socket")
def _(targets: Targets) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(targets.unix_socket)


@_attempt("connect to an abstract UNIX socket")
def _(targets: Targets) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0{targets.abstract_socket}")


# --- reading --------------------------------------------------------------------------------------


@_attempt("read /etc/passwd")
def _(targets: Targets) -> None:
    Path("/etc/passwd").read_bytes()


@_attempt("read the base")
def _(targets: Targets) -> None:
    Path(targets.base).read_bytes()


@_attempt("read the file of keys")
def _(targets: Targets) -> None:
    Path(targets.keys).read_bytes()


@_attempt("list the data folder")
def _(targets: Targets) -> None:
    list(Path(targets.folder).iterdir())


@_attempt("read the environment of the engine, with its keys")
def _(targets: Targets) -> None:
    Path(f"/proc/{os.getppid()}/environ").read_bytes()


@_attempt("open the memory of the engine")
def _(targets: Targets) -> None:
    Path(f"/proc/{os.getppid()}/mem").open("rb").close()


@_attempt("list the files that the engine has open")
def _(targets: Targets) -> None:
    list(Path(f"/proc/{os.getppid()}/fd").iterdir())


@_attempt("list the temporary folder")
def _(targets: Targets) -> None:
    list(Path("/tmp").iterdir())


@_attempt("learn that a file exists, and how large it is")
def _(targets: Targets) -> None:
    Path(targets.base).stat()


@_attempt("read the packages that readers are made of")
def _(targets: Targets) -> None:
    Path(msgspec.__file__).read_bytes()


# --- writing --------------------------------------------------------------------------------------


@_attempt("make a file in the temporary folder")
def _(targets: Targets) -> None:
    path = Path(f"/tmp/kb-hostile-{os.getpid()}")
    path.touch()
    path.unlink()


@_attempt("make a file in the data folder")
def _(targets: Targets) -> None:
    (Path(targets.folder) / "made").write_bytes(b"x")


@_attempt("overwrite the base")
def _(targets: Targets) -> None:
    with Path(targets.base).open("r+b") as base:
        base.write(b"x")


@_attempt("cut the base off")
def _(targets: Targets) -> None:
    os.truncate(targets.base, 1)


@_attempt("change the rights of the base")
def _(targets: Targets) -> None:
    Path(targets.base).chmod(0o666)


@_attempt("rename the base")
def _(targets: Targets) -> None:
    Path(targets.base).rename(f"{targets.base}.gone")
    Path(f"{targets.base}.gone").rename(targets.base)


@_attempt("make a link or a folder beside the base")
def _(targets: Targets) -> None:
    Path(f"{targets.base}.link").symlink_to(targets.base)
    Path(f"{targets.base}.folder").mkdir()


@_attempt("remove a file from the data folder")
def _(targets: Targets) -> None:
    Path(targets.keys).unlink()


@_attempt("write into the device of nothing")
def _(targets: Targets) -> None:
    Path(os.devnull).write_bytes(b"x")


# --- other processes ------------------------------------------------------------------------------


@_attempt("start a program")
def _(targets: Targets) -> None:
    subprocess.run(["/bin/true"], check=True)


@_attempt("fork")
def _(targets: Targets) -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


@_attempt("become another program")
def _(targets: Targets) -> None:
    with suppress(FileNotFoundError):  # the lookup happened, so the program would have been run
        os.execv("/does/not/exist", ["x"])


@_attempt("run a program from memory")
def _(targets: Targets) -> None:
    _syscall("memfd_create", ctypes.create_string_buffer(b"x"), 0)


@_attempt("send the engine a signal")
def _(targets: Targets) -> None:
    os.kill(os.getppid(), signal.SIGURG)


@_attempt("trace another process")
def _(targets: Targets) -> None:
    _syscall("ptrace", _PTRACE_SEIZE, targets.process, 0, 0)


@_attempt("read the engine's memory by a system call")
def _(targets: Targets) -> None:
    if _syscall("process_vm_readv", os.getppid(), 0, 0, 0, 0, 0) != 0:
        raise ValueError("it read something")


@_attempt("bound the files that the engine may open")
def _(targets: Targets) -> None:
    bounds = resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, bounds)


@_attempt("change the priority of the engine")
def _(targets: Targets) -> None:
    os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid()))


# --- the kernel -----------------------------------------------------------------------------------


@_attempt("make namespaces of its own")
def _(targets: Targets) -> None:
    _syscall("unshare", _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWUSER)


@_attempt("set a ring of the kernel's up (io_uring)")
def _(targets: Targets) -> None:
    os.close(_syscall("io_uring_setup", 1, ctypes.create_string_buffer(120)))


@_attempt("share memory with other processes")
def _(targets: Targets) -> None:
    _syscall("shmget", 0, mmap.PAGESIZE, _NEW_SEGMENT)


@_attempt("outlive the engine")
def _(targets: Targets) -> None:
    if ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) != 0:
        raise OSError("refused")


# --- operations that a reader needs -----------------------------------------------------------------


@_attempt("start a thread")
def _(targets: Targets) -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
