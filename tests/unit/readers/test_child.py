"""The reader's process: resource limits, its end with all children, and no leftovers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from kb_contracts.api.formats import FORMATS, Format
from kb_readers import child
from kb_readers.failures import ExtractionFailed
from kb_readers.model import Limits
from tests.support.documents import large_pdf, nested_pdf
from tests.support.eventually import eventually_async
from tests.support.loop_clock import advance_loop
from tests.support.patience import ANSWER_SECONDS, SILENCE, START_SECONDS
from tests.support.reading import read_path
from tests.support.stack import own_children

HTML, PDF = FORMATS["html"], FORMATS["pdf"]

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux has them"),
]


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = own_children()
    yield
    assert own_children() == before


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A file that never ends, and a descriptor to write to it."""
    path = tmp_path / "endless.html"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    yield path, writer
    os.close(writer)


async def reading(writer: int) -> psutil.Process:
    # More than a pipe holds: this returns only after the reader has read a part.
    await asyncio.to_thread(os.write, writer, b"x" * (1 << 18))
    return reader_of(psutil.Process())


def reader_of(engine: psutil.Process) -> psutil.Process:
    (process,) = (each for each in engine.children() if "kb_readers.worker" in each.cmdline())
    return process


async def failure(path: Path, fmt: Format, limits: Limits | None = None) -> ExtractionFailed:
    with pytest.raises(ExtractionFailed) as failed:
        await read_path(path, fmt, limits or Limits())
    return failed.value


async def test_a_failure_inside_is_the_same_failure_outside(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"no PDF")
    assert (await failure(path, PDF)).code == "file_corrupt"


async def test_a_reader_that_takes_too_long_is_ended(endless: tuple[Path, int]) -> None:
    failed = await failure(endless[0], HTML, Limits(wall_seconds=SILENCE))
    assert failed.code == "extraction_timeout"
    assert f"{SILENCE} seconds" in failed.message


async def test_cancelling_ends_the_reader(endless: tuple[Path, int]) -> None:
    path, writer = endless
    task = asyncio.create_task(read_path(path, HTML))
    process = await reading(writer)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not process.is_running()


async def test_cancelling_while_the_reader_starts_ends_it(endless: tuple[Path, int]) -> None:
    """However early the cancellation, because nothing could end the process later."""
    for turns in range(6):
        task = asyncio.create_task(read_path(endless[0], HTML))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert own_children() == []


async def test_the_reader_is_bound_and_knows_no_secret(
    endless: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KB_API_KEY", "secret")
    path, writer = endless
    task = asyncio.create_task(read_path(path, HTML, Limits(least_memory_bytes=1 << 30, text_bytes=1 << 20)))
    process = await reading(writer)
    assert process.nice() >= min(19, psutil.Process().nice() + 10)
    assert os.getsid(process.pid) == process.pid
    assert process.rlimit(psutil.RLIMIT_AS) == (1 << 30, 1 << 30)
    assert process.rlimit(psutil.RLIMIT_FSIZE)[1] < 20 << 20
    assert process.rlimit(psutil.RLIMIT_CORE) == (0, 0)
    assert process.rlimit(psutil.RLIMIT_NOFILE)[1] <= 64
    assert process.rlimit(psutil.RLIMIT_CPU)[1] <= 302
    environment = process.environ()
    assert "KB_API_KEY" not in environment
    assert environment["HOME"] == os.devnull
    task.cancel()
    await asyncio.wait([task])


async def test_processes_started_by_a_reader_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, advance = tmp_path / "held", advance_loop(monkeypatch)
    os.mkfifo(held)
    script = f"(echo started; exec tail -f /dev/null) > {held} & wait"
    monkeypatch.setattr(child, "_command", lambda task: ["/bin/sh", "-c", script])
    path = tmp_path / "x"
    path.touch()
    with os.fdopen(os.open(held, os.O_RDONLY | os.O_NONBLOCK), "rb") as listening:
        failing = asyncio.create_task(failure(path, HTML, Limits(wall_seconds=ANSWER_SECONDS)))
        assert await eventually_async(listening.readline) == b"started\n"
        advance(ANSWER_SECONDS)
        assert (await failing).code == "extraction_timeout"
        os.set_blocking(listening.fileno(), True)
        # End of file comes when the last process with the other side is gone.
        assert await asyncio.to_thread(listening.read) == b""


def dying(how: str) -> list[str]:
    return [sys.executable, "-c", f"import os, signal, sys; {how}"]


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("os.abort()", "extraction_failed"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "extraction_failed"),
        ("sys.exit(3)", "extraction_failed"),
        ("print('no report')", "extraction_failed"),
        (r"sys.stdout.buffer.write(b'\x81\xa4type\xa1\xff')", "extraction_failed"),
        ("pass", "extraction_failed"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "extraction_memory"),
        (
            "print('memory allocation of 9 bytes failed', file=sys.stderr, flush=True); os.abort()",
            "extraction_memory",
        ),
        ("raise MemoryError", "extraction_memory"),
        ("os.kill(os.getpid(), signal.SIGXCPU)", "extraction_timeout"),
        ("os.kill(os.getpid(), signal.SIGALRM)", "extraction_timeout"),
    ],
)
async def test_every_way_to_die_has_a_clear_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, code: str
) -> None:
    monkeypatch.setattr(child, "_command", lambda task: dying(how))
    path = tmp_path / "x"
    path.touch()
    assert (await failure(path, HTML)).code == code


def page_of(megabytes: float) -> bytes:
    return b"<p>" + b"word " * int(megabytes * 200_000)


@pytest.mark.parametrize(
    ("make", "name", "limits", "code", "message"),
    [
        (partial(page_of, 0.05), "html", Limits(text_bytes=20_000), "extraction_failed", "20,000 bytes"),
        (partial(page_of, 128), "html", Limits(memory_bytes=100 << 20), "extraction_memory", "100 MiB"),
        (partial(page_of, 128), "pdf", Limits(memory_bytes=100 << 20), "extraction_memory", "100 MiB"),
        (nested_pdf, "pdf", Limits(least_memory_bytes=200 << 20), "extraction_memory", "200 MiB"),
        # The limit of processor time depends on the file's size.
        (
            nested_pdf,
            "pdf",
            Limits(cpu_seconds=0.5, memory_bytes=8 << 30, least_memory_bytes=8 << 30),
            "extraction_timeout",
            "far more work than its size",
        ),
    ],
    ids=["text", "memory of HTML", "memory of PDF", "memory without end", "work in circles"],
)
async def test_a_file_over_a_limit_is_refused_with_the_limit(
    tmp_path: Path, make: Callable[[], bytes], name: str, limits: Limits, code: str, message: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(make())
    failed = await failure(path, FORMATS[name], limits)
    assert failed.code == code
    assert message in failed.message


async def test_many_at_once_do_not_mix(tmp_path: Path) -> None:
    async def one(number: int) -> str:
        path = tmp_path / str(number)
        path.write_text(f"<h1>Number {number}</h1>")
        return (await read_path(path, HTML)).pages[0].text

    texts = await asyncio.gather(*(one(number) for number in range(6)))
    assert texts == [f"# Number {number}" for number in range(6)]


async def test_reading_leaves_no_file_open(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(b"<p>text")
    bad.write_bytes(b"\xff")
    await read_path(good, HTML)
    before = psutil.Process().num_fds()
    await read_path(good, HTML)
    await failure(bad, HTML)
    assert psutil.Process().num_fds() == before


async def test_reading_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(home))
    path = tmp_path / "x"
    path.write_bytes(large_pdf(1))
    await read_path(path, PDF)
    assert list(home.iterdir()) == []


def test_the_reader_dies_with_an_engine_that_is_killed(endless: tuple[Path, int]) -> None:
    path, writer = endless
    program = (
        "import asyncio, sys; from kb_contracts.api.formats import FORMATS; "
        "from kb_readers.readers import read_file; "
        "asyncio.run(read_file(open(sys.argv[1], 'rb'), FORMATS['html']))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with subprocess.Popen([sys.executable, "-c", program, str(path)], env=environment) as engine:
        os.write(writer, b"x" * (1 << 18))
        reader = reader_of(psutil.Process(engine.pid))
        engine.send_signal(signal.SIGKILL)
        engine.wait(START_SECONDS)
    gone, alive = psutil.wait_procs([reader], timeout=START_SECONDS)
    assert gone
    assert not alive
