"""Abilities of a reader that a hostile file has taken over: without the sandbox, and in it.

The table in `docs/security.md` is checked against them.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from kb_contracts.api.formats import FORMATS
from kb_readers import child
from kb_readers.child import read_in_child
from kb_readers.failures import ExtractionFailed
from kb_readers.model import Limits, Reader
from kb_readers.probe import sandbox_info
from kb_readers.readers import ignore_progress
from kb_readers.sandbox import PARTS, Sandboxing, kernel, seccomp
from tests.support.hostile_reader import ATTEMPTS, Targets

HOSTILE = Reader("tests.support.hostile_reader", "read_hostile", takes_context=True)
PAGE = Path(__file__).parents[3] / "docs" / "security.md"
NEEDED = (
    "learn that a file exists, and how large it is",
    "read the packages that readers are made of",
    "start a thread",
)
"""Attempts that succeed in the sandbox too: the first is a known limit, the others are needed by readers."""
LANDLOCK_ALONE = ("read ", "list ", "open ")
"""Attempts that only Landlock refuses begin with one of these."""

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's"),
]


@pytest.fixture
def targets(tmp_path: Path) -> Iterator[Targets]:
    base, keys = tmp_path / "kb.sqlite", tmp_path / "keys.toml"
    base.write_bytes(b"SQLite format 3\0")
    keys.write_text("key = 1")
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        unix, abstract = stack.enter_context(socket.socket(socket.AF_UNIX)), f"kb-test-{os.getpid()}"
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        hidden = stack.enter_context(socket.socket(socket.AF_UNIX))
        hidden.bind(f"\0{abstract}")
        hidden.listen()
        idle = stack.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        stack.callback(idle.kill)
        yield Targets(
            folder=str(tmp_path),
            base=str(base),
            keys=str(keys),
            tcp_port=tcp.getsockname()[1],
            udp_port=udp.getsockname()[1],
            unix_socket=str(tmp_path / "socket"),
            abstract_socket=abstract,
            process=idle.pid,
        )


@pytest.fixture
async def signals() -> AsyncIterator[list[int]]:
    """The signals that this process receives, in place of an engine."""
    received: list[int] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGURG, received.append, signal.SIGURG)
    yield received
    loop.remove_signal_handler(signal.SIGURG)


async def outcomes(targets: Targets, sandbox: Sandboxing) -> dict[str, str]:
    """Return the error of each attempt by name, or an empty string if it succeeded."""
    source = Path(targets.folder) / "file"
    source.write_bytes(msgspec.json.encode(targets))
    with source.open("rb") as file:
        found = await read_in_child(file, FORMATS["html"], HOSTILE, Limits(sandbox=sandbox), ignore_progress)
    return msgspec.json.decode(found.pages[0].text, type=dict[str, str])


async def requires_all_parts() -> None:
    if missing := (await sandbox_info("auto")).missing:
        pytest.skip(f"this system lacks a part of the sandbox: {missing}")


async def test_a_hostile_reader_reaches_nothing(targets: Targets, signals: list[int]) -> None:
    await requires_all_parts()
    found = await outcomes(targets, "require")
    assert [name for name, error in found.items() if not error] == [*NEEDED]
    assert signals == []
    assert Path(targets.base).read_bytes() == b"SQLite format 3\0"
    assert sorted(each.name for each in Path(targets.folder).iterdir()) == [
        "file",
        "kb.sqlite",
        "keys.toml",
        "socket",
    ]


async def test_without_the_sandbox_it_would(targets: Targets, signals: list[int]) -> None:
    """The attempts are real: without the sandbox they succeed, unless the system itself refuses them."""
    found = await outcomes(targets, "off")
    worked = {name for name, error in found.items() if not error}
    assert {"connect over TCP", "read /etc/passwd", "overwrite the base", "start a program"} <= worked
    assert signals
    if os.geteuid() == 0:
        assert {name: error for name, error in found.items() if error} == {}


async def test_without_landlock_files_can_be_read_and_nothing_more(
    targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an old kernel, or in a container that hides it."""
    monkeypatch.setattr(child, "_WORKER", "tests.support.without_landlock")
    found = await outcomes(targets, "auto")
    worked = [name for name, error in found.items() if not error and name not in NEEDED]
    assert worked
    assert [name for name in worked if not name.startswith(LANDLOCK_ALONE)] == []


async def test_a_required_sandbox_part_that_is_missing_refuses_to_read(
    targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_WORKER", "tests.support.without_landlock")
    with pytest.raises(ExtractionFailed) as failed:
        await outcomes(targets, "require")
    assert failed.value.code == "extraction_failed"
    assert "landlock: the kernel lacks it, or a container refuses it (ENOSYS)" in failed.value.message
    assert "KB_SANDBOX=auto" in failed.value.message


async def test_the_status_lists_available_and_missing_sandbox_parts() -> None:
    info = await sandbox_info("require")
    assert sorted([*info.holds, *info.missing]) == sorted(PARTS)
    assert all(info.missing.values())
    off = await sandbox_info("off")
    assert (off.setting, off.holds, off.missing) == ("off", [], {})


async def test_the_documentation_has_the_table_of_what_works(targets: Targets, signals: list[int]) -> None:
    await requires_all_parts()
    if os.geteuid() != 0:
        pytest.skip("what worked without it is what works as root")
    now = await outcomes(targets, "require")
    before = await outcomes(targets, "off")  # this run removes some of them
    rows = [f"| {name} | {_word(before[name])} | {_word(now[name])} |" for name in ATTEMPTS]
    stated = [line for line in PAGE.read_text("utf-8").splitlines() if re.search(r"\| (yes|no) \|$", line)]
    assert stated == rows, "\n".join(rows)


def _word(error: str) -> str:
    return "no" if error else "yes"


# --- the filter, for both processors --------------------------------------------------------------


def answer_of(machine: kernel.Machine, number: int, *arguments: int, audit: int | None = None) -> int:
    """Return the answer of process 7's filter on this machine to a system call."""
    words = {0: number, 4: machine.audit if audit is None else audit}
    for index in range(6):
        value = arguments[index] if index < len(arguments) else 0
        words |= {16 + 8 * index: value & 0xFFFFFFFF, 20 + 8 * index: value >> 32}
    code, at, held = seccomp.program(machine, 7), 0, 0
    while True:
        step = code[at]
        at += 1
        match step.code:
            case 0x20:
                held = words[step.operand]
            case 0x54:
                held &= step.operand
            case 0x15:
                at += step.if_equal if held == step.operand else step.otherwise
            case 0x06:
                return step.operand


ALLOWED, DENIED, UNKNOWN, KILLED = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
READ_ONLY, CREATING = 0o2000000, 0o2000101
THREAD, PROCESS, NAMESPACE = 0x3D0F00, 0x1200011, 0x3D0F00 | 0x40000000


@pytest.mark.parametrize(
    ("name", "openat", "clone", "kill", "tgkill", "prctl", "prlimit64", "socket_", "execve", "ioctl"),
    [
        ("x86_64", 257, 56, 62, 234, 157, 302, 41, 59, 16),
        ("aarch64", 56, 220, 129, 131, 167, 261, 198, 221, 29),
    ],
)
def test_the_filter_lets_through_what_reading_takes(
    name: str, openat: int, clone: int, kill: int, tgkill: int, prctl: int, prlimit64: int, socket_: int,
    execve: int, ioctl: int,
) -> None:  # fmt: skip
    machine = kernel.MACHINES[name]
    expected = {
        (openat, 0, 0, READ_ONLY): ALLOWED,
        (openat, 0, 0, CREATING): DENIED,
        (openat, 0, 0, os.O_RDWR): DENIED,
        (clone, THREAD): ALLOWED,
        (clone, PROCESS): DENIED,
        (clone, NAMESPACE): DENIED,
        (435,): UNKNOWN,  # clone3: threads are created by clone
        (kill, 7, 9): UNKNOWN,
        (tgkill, 7, 7, 6): ALLOWED,  # abort
        (tgkill, 1, 1, 9): DENIED,
        (prctl, 15): ALLOWED,  # a thread's name
        (prctl, 1): DENIED,  # sets the signal at the parent's death
        (prlimit64, 0, 7, 0): ALLOWED,
        (prlimit64, 0, 7, 1 << 32): DENIED,
        (prlimit64, 0, 7, 1): DENIED,
        (socket_, 2, 1): UNKNOWN,
        (execve,): UNKNOWN,
        (ioctl, 0, 0x5401): ALLOWED,
        (ioctl, 0, 0x5412): DENIED,  # TIOCSTI: inserts terminal input
        (444,): UNKNOWN,
    }
    assert {call: answer_of(machine, *call) for call in expected} == expected


@pytest.mark.parametrize("machine", kernel.MACHINES.values(), ids=lambda each: each.name)
def test_system_calls_by_another_numbering_end_the_process(machine: kernel.Machine) -> None:
    """The 32-bit calls of the same kernel have other numbers: 11 is execve there."""
    assert answer_of(machine, 0, audit=0x40000003) == KILLED
    assert answer_of(machine, 0x40000000 + 59) == UNKNOWN  # x32, on x86_64


@pytest.mark.parametrize(("platform", "processor"), [("darwin", "x86_64"), ("linux", "riscv64")])
def test_other_systems_have_no_sandbox(
    platform: str, processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(["Linux", "host", "6", "x", processor]))
    with pytest.raises(kernel.NotAvailable):
        kernel.machine()
