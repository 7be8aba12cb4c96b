"""One engine at a time owns a base, whatever name its file is opened by; the other is another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kb_engine.store.port import BaseInUse, BaseLinked, NotABase
from kb_engine.store.repository import state
from tests.support.stores import opened

ACKNOWLEDGED = 15
_OWNER = """
import asyncio, sys
from pathlib import Path
from kb_engine.store.repository import jobs
from tests.support.stores import new_note, opened

async def own():
    async with opened(Path(sys.argv[1])) as base:
        for number in range(int(sys.argv[2])):
            await base.store.once(None, jobs.accept, new_note(f"note {number}"))
        print("acknowledged", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(own())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the base lies."""
    return tmp_path / "kb.db"


@pytest.fixture
def owner(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that owns the base and has acknowledged jobs, which are in the log beside the base alone."""
    command = [sys.executable, "-c", _OWNER, str(path), str(ACKNOWLEDGED)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "acknowledged\n"
        yield process
        process.kill()


def symbolic(path: Path) -> Path:
    """Another name that leads to the same file, from another folder."""
    (path.parent / "elsewhere").mkdir()
    other = path.parent / "elsewhere" / "link.db"
    other.symlink_to(path)
    return other


def without_lock_file(path: Path) -> Path:
    """The same name, after somebody has tidied up."""
    path.with_name(path.name + ".lock").unlink()
    return path


def renamed(path: Path) -> Path:
    """The file has another name than it had when it was opened."""
    return path.rename(path.with_name("renamed.db"))


def hard_linked(path: Path) -> Path:
    """A second name of the same file."""
    other = path.with_name("link.db")
    other.hardlink_to(path)
    return other


async def jobs_in(path: Path) -> int:
    """How many jobs wait in the base."""
    async with opened(path) as base:
        return (await base.store.read(state.counts)).queue.queued


@pytest.mark.parametrize("other_name", [Path, symbolic, without_lock_file, renamed, hard_linked])
async def test_a_base_that_is_owned_is_refused_by_any_name(
    path: Path, owner: subprocess.Popen[str], other_name: Callable[[Path], Path]
) -> None:
    other = other_name(path)
    with pytest.raises(BaseInUse):
        await jobs_in(other)
    owner.kill()
    owner.wait()
    if other_name is renamed:
        other.rename(path)
    if other_name is hard_linked:
        other.unlink()
    assert await jobs_in(path) == ACKNOWLEDGED


async def test_a_symbolic_link_leads_to_all_that_was_acknowledged(
    path: Path, owner: subprocess.Popen[str]
) -> None:
    """The log lies beside the file, not beside the link."""
    owner.kill()
    owner.wait()
    assert await jobs_in(symbolic(path)) == ACKNOWLEDGED


async def test_a_base_with_two_names_is_refused_until_it_has_one(
    path: Path, owner: subprocess.Popen[str]
) -> None:
    """What was acknowledged may lie in a log beside the other name: opened by this one, it would be lost."""
    owner.kill()
    owner.wait()
    other = hard_linked(path)
    for name in (other, path):
        with pytest.raises(BaseLinked, match="hard link"):
            await jobs_in(name)
    other.unlink()
    assert await jobs_in(path) == ACKNOWLEDGED


async def test_an_empty_file_is_not_a_new_base(path: Path) -> None:
    """What was in it may have been lost on the way; nobody is to find that out by an empty answer."""
    path.touch()
    with pytest.raises(NotABase, match="empty"):
        await jobs_in(path)
    assert path.read_bytes() == b""
    path.unlink()
    assert await jobs_in(path) == 0
    assert path.stat().st_size > 0
