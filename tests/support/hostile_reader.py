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

_NUMBERS = {  # numbers of system calls without a function in Python: x86_64, aarch64
    "io_uring_setup": (425, 425),
    "memfd_create": (319, 279),
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


def _syscall(name: str, *arguments: int | ctypes.Array[ctypes.c_char]) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    number = _NUMBERS[name][platform.machine() == "aarch64"]
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    answer = int(library.syscall(ctypes.c_long(number), *words))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def _send_datagram(targets: Targets) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", targets.udp_port))


def _connect_to_path(targets: Targets) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(targets.unix_socket)


def _connect_to_abstract(targets: Targets) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0{targets.abstract_socket}")


def _make_temporary_file(_: Targets) -> None:
    path = Path(f"/tmp/kb-hostile-{os.getpid()}")
    path.touch()
    path.unlink()


def _overwrite(targets: Targets) -> None:
    with Path(targets.base).open("r+b") as base:
        base.write(b"x")


def _rename(targets: Targets) -> None:
    Path(targets.base).rename(f"{targets.base}.gone")
    Path(f"{targets.base}.gone").rename(targets.base)


def _link_and_folder(targets: Targets) -> None:
    Path(f"{targets.base}.link").symlink_to(targets.base)
    Path(f"{targets.base}.folder").mkdir()


def _fork(_: Targets) -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def _become_another(_: Targets) -> None:
    with suppress(FileNotFoundError):  # the lookup happened, so the program would have been run
        os.execv("/does/not/exist", ["x"])


def _read_memory(_: Targets) -> None:
    if _syscall("process_vm_readv", os.getppid(), 0, 0, 0, 0, 0) != 0:
        raise ValueError("it read something")


def _bound_files(_: Targets) -> None:
    bounds = resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, bounds)


def _outlive(_: Targets) -> None:
    if ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) != 0:
        raise OSError("refused")


def _start_thread(_: Targets) -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


ATTEMPTS: dict[str, Attempt] = {
    # the network
    "connect over TCP": lambda it: socket.create_connection(
        ("127.0.0.1", it.tcp_port), timeout=ANSWER_SECONDS
    ).close(),
    "listen on a TCP port": lambda _: socket.create_server(("127.0.0.1", 0)).close(),
    "send over UDP": _send_datagram,
    "connect to a UNIX socket": _connect_to_path,
    "connect to an abstract UNIX socket": _connect_to_abstract,
    # reading
    "read /etc/passwd": lambda _: Path("/etc/passwd").read_bytes(),
    "read the base": lambda it: Path(it.base).read_bytes(),
    "read the file of keys": lambda it: Path(it.keys).read_bytes(),
    "list the data folder": lambda it: list(Path(it.folder).iterdir()),
    "read the environment of the engine, with its keys": lambda _: Path(
        f"/proc/{os.getppid()}/environ"
    ).read_bytes(),
    "open the memory of the engine": lambda _: Path(f"/proc/{os.getppid()}/mem").open("rb").close(),
    "list the files that the engine has open": lambda _: list(Path(f"/proc/{os.getppid()}/fd").iterdir()),
    "list the temporary folder": lambda _: list(Path("/tmp").iterdir()),
    "learn that a file exists, and how large it is": lambda it: Path(it.base).stat(),
    "read the packages that readers are made of": lambda _: Path(msgspec.__file__).read_bytes(),
    # writing
    "make a file in the temporary folder": _make_temporary_file,
    "make a file in the data folder": lambda it: (Path(it.folder) / "made").write_bytes(b"x"),
    "overwrite the base": _overwrite,
    "cut the base off": lambda it: os.truncate(it.base, 1),
    "change the rights of the base": lambda it: Path(it.base).chmod(0o666),
    "rename the base": _rename,
    "make a link or a folder beside the base": _link_and_folder,
    "remove a file from the data folder": lambda it: Path(it.keys).unlink(),
    "write into the device of nothing": lambda _: Path(os.devnull).write_bytes(b"x"),
    # other processes
    "start a program": lambda _: subprocess.run(["/bin/true"], check=True),
    "fork": _fork,
    "become another program": _become_another,
    "run a program from memory": lambda _: _syscall("memfd_create", ctypes.create_string_buffer(b"x"), 0),
    "send the engine a signal": lambda _: os.kill(os.getppid(), signal.SIGURG),
    "trace another process": lambda it: _syscall("ptrace", _PTRACE_SEIZE, it.process, 0, 0),
    "read the engine's memory by a system call": _read_memory,
    "bound the files that the engine may open": _bound_files,
    "change the priority of the engine": lambda _: os.setpriority(
        os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid())
    ),
    # the kernel
    "make namespaces of its own": lambda _: _syscall(
        "unshare", _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWUSER
    ),
    "set a ring of the kernel's up (io_uring)": lambda _: os.close(
        _syscall("io_uring_setup", 1, ctypes.create_string_buffer(120))
    ),
    "share memory with other processes": lambda _: _syscall("shmget", 0, mmap.PAGESIZE, _NEW_SEGMENT),
    "outlive the engine": _outlive,
    # operations that a reader needs
    "start a thread": _start_thread,
}
"""Attempts by name, in the words of the documentation."""
