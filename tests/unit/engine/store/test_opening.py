"""Opening of bases, and the errors of bases that do not open."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from kb_engine.store.port import (
    BaseInUse,
    BaseLinked,
    BaseTooNew,
    BaseUnwritable,
    EmbedderIdentity,
    EmbedderMismatch,
    NotABase,
)
from kb_engine.store.repository import jobs, state
from kb_engine.store.sqlite import connection
from kb_engine.store.sqlite.schema import MIGRATIONS
from tests.support.stores import (
    EMBEDDER,
    Place,
    all_documents,
    axis,
    direct,
    left_by_a_crash,
    new_note,
    new_place,
    opened,
    refused,
    visit,
)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
async def test_a_new_base_keeps_its_documents_after_a_restart(tmp_path: Path, kind: str) -> None:
    place = await new_place(kind, tmp_path / "new folder", empty=True)
    async with opened(place) as base:
        document = await base.note("some words", tags=["t"], vectors=[axis(2)])
    async with opened(place) as base:
        assert (await base.detail(document.uid)).tags == ["t"]
        assert (await base.find("words")).total == 1
        assert (await base.find("", "vector", vector=axis(2))).results[0].score == 1.0


async def test_a_second_process_is_refused_by_the_number_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "kb.db"
    async with opened(path):
        with pytest.raises(BaseInUse, match=rf"{path} .*process {os.getpid()} is using it"):
            await visit(path)
    async with opened(path) as base:
        await base.store.ping()


async def test_a_base_of_another_embedder_is_refused_with_advice_to_reindex(place: Place) -> None:
    async with opened(place) as base:
        await base.note("a")
    other = EmbedderIdentity("other", 3)
    with pytest.raises(EmbedderMismatch, match=r"test \(8 dimensions\).*other \(3.*kb reindex"):
        await visit(place, embedder=other)
    async with opened(place) as base:
        assert (await all_documents(base)).total == 1


async def test_a_base_takes_the_dimensions_of_its_first_vectors(place: Place) -> None:
    """The embedder was unreachable before; afterwards the base has its dimensions, and its name suffices."""
    unknown = EmbedderIdentity("test", 0)
    async with opened(place, embedder=EmbedderIdentity("misspelt", 0)) as base:
        assert base.store.dimensions == 0
    async with opened(place, embedder=unknown) as base:
        assert (await base.find("words")).total == 0
        assert (await base.find("", "vector", vector=axis(2))).results == []
        await base.note("some words", vectors=[axis(2)])
        assert base.store.dimensions == len(axis(2))
        assert (await base.find("", "vector", vector=axis(2))).total == 1
    for known in (unknown, EMBEDDER):
        async with opened(place, embedder=known) as base:
            assert base.store.dimensions == len(axis(2))
            assert (await base.find("", "vector", vector=axis(2))).total == 1
    for other in (EmbedderIdentity("other", 0), EmbedderIdentity("test", 7)):
        with pytest.raises(EmbedderMismatch, match="kb reindex"):
            await visit(place, embedder=other)


@pytest.mark.parametrize("content", [b"not a base at all, but long enough to be read " * 99, b"short"])
async def test_a_file_that_is_no_sqlite_file_is_refused_unchanged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kb.db"
    path.write_bytes(content)
    with pytest.raises(NotABase, match="no SQLite file"):
        await visit(path)
    assert path.read_bytes() == content


async def test_a_damaged_base_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kb.db"
    async with opened(path) as base:
        for number in range(50):
            await base.note(f"text {number} " * 50)
    path.write_bytes(path.read_bytes()[:40_000])
    with pytest.raises(NotABase, match="damaged"):
        await visit(path)


@pytest.mark.parametrize("version", [-1, 0, 1, len(MIGRATIONS)])
async def test_a_base_of_another_program_is_refused_unchanged(tmp_path: Path, version: int) -> None:
    """Other programs number their layouts too, and their number may be valid here."""
    path = tmp_path / "kb.db"
    with direct(path) as db:
        db.execute("CREATE TABLE theirs (x)")
        db.pragma("user_version", version)
    with pytest.raises(NotABase, match="another program") as caught:
        await visit(path)
    assert "\n" not in str(caught.value)
    with direct(path) as db:
        assert db.execute("SELECT group_concat(name) FROM sqlite_schema").get == "theirs"


def test_every_refusal_is_one_line() -> None:
    assert str(NotABase(Path("/a"), "one.\nDETAIL:  two.\r\nHINT: three.")) == (
        "The base /a cannot be opened: one. DETAIL:  two. HINT: three."
    )


async def test_a_base_of_a_later_engine_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "kb.db"
    await visit(path)
    with direct(path) as db:
        db.pragma("user_version", 999)
    with pytest.raises(BaseTooNew, match=f"version 999, this engine knows {len(MIGRATIONS)} ") as caught:
        await visit(path)
    assert "\n" not in str(caught.value)


async def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BaseUnwritable, match="user may write"):
        await visit(tmp_path / "file" / "kb.db")


async def test_a_path_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    """SQLite's message alone would not say how to solve it."""
    (tmp_path / "kb.db").mkdir()
    with pytest.raises(BaseUnwritable, match="right to write"):
        await visit(tmp_path / "kb.db")


async def test_a_base_that_another_program_keeps_locked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other program may not know of the lock file."""
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_MS", 1)
    db = apsw.Connection(str(tmp_path / "kb.db"))
    db.execute("CREATE TABLE some (x); BEGIN EXCLUSIVE")
    with pytest.raises(BaseInUse, match="another process"):
        await visit(tmp_path / "kb.db")
    db.close()


async def test_a_base_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "kb.db") as base:
        await base.note("private")
        modes = {file.name: stat.filemode(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes.pop("kb.db.index") == "drwx------"
    assert set(modes.values()) == {"-rw-------"}
    assert {"kb.db", "kb.db-wal", "kb.db.lock"} <= set(modes)


async def test_a_closed_store_says_that_it_is_closed_and_closes_again(place: Place) -> None:
    async with opened(place) as base:
        await base.store.close()
        for call in (base.store.ping(), base.store.read(state.counts)):
            assert (await refused(call)).code == "not_ready"


async def test_a_base_is_synced_and_checked_as_promised(tmp_path: Path) -> None:
    async with opened(tmp_path / "kb.db") as base:
        wanted = ("journal_mode", "synchronous", "foreign_keys")
        found = await base.store._writer.run(lambda db: [db.pragma(name) for name in wanted])
    assert found == ["wal", 2, 1]


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
    return tmp_path / "kb.db"


@pytest.fixture
def owner(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that owns the base and has acknowledged jobs, which are only in the write-ahead log."""
    command = [sys.executable, "-c", _OWNER, str(path), str(ACKNOWLEDGED), "--supervised", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "acknowledged\n"
        yield process
        process.kill()


def symbolic(path: Path) -> Path:
    """A symbolic link to the base, in another folder."""
    (path.parent / "elsewhere").mkdir()
    other = path.parent / "elsewhere" / "link.db"
    other.symlink_to(path)
    return other


def without_lock_file(path: Path) -> Path:
    path.with_name(path.name + ".lock").unlink()
    return path


def renamed(path: Path) -> Path:
    """The file under a new name, changed after it was opened."""
    return path.rename(path.with_name("renamed.db"))


def hard_linked(path: Path) -> Path:
    other = path.with_name("link.db")
    other.hardlink_to(path)
    return other


async def jobs_in(path: Path) -> int:
    async with opened(path) as base:
        return (await base.store.read(state.counts)).queue.queued


async def test_a_base_that_is_owned_is_refused_by_any_name(path: Path, owner: subprocess.Popen[str]) -> None:
    """The refusal names the supervisor of a supervised owner, which would start it again."""
    with pytest.raises(BaseInUse, match=rf"process {owner.pid} .* `kb up` \(process {os.getpid()}\)"):
        await jobs_in(path)
    link = symbolic(path)
    for other in (path, link, without_lock_file(path)):
        with pytest.raises(BaseInUse):
            await jobs_in(other)
    for other_name in (renamed, hard_linked):
        other = other_name(path)
        with pytest.raises(BaseInUse):
            await jobs_in(other)
        other.replace(path)
        other.unlink(missing_ok=True)  # of two names of a file neither is replaced
    owner.kill()
    owner.wait()
    assert await jobs_in(link) == ACKNOWLEDGED  # the log is beside the file, not beside a link to it


async def test_a_base_with_two_names_is_refused_until_it_has_one(tmp_path: Path) -> None:
    """Acknowledged changes may be in a log beside the other name, and would be lost."""
    async with opened(tmp_path / "kb.db") as base:
        await base.store.once(None, jobs.accept, new_note("a note"))
        path = left_by_a_crash(base, tmp_path / "copy")
    other = hard_linked(path)
    for name in (other, path):
        with pytest.raises(BaseLinked, match="hard link"):
            await jobs_in(name)
    other.unlink()
    assert await jobs_in(path) == 1


async def test_an_empty_file_is_not_a_new_base(path: Path) -> None:
    """Its content may have been lost, which an empty search result would hide."""
    path.touch()
    with pytest.raises(NotABase, match="empty"):
        await jobs_in(path)
    assert path.read_bytes() == b""
    path.unlink()
    assert await jobs_in(path) == 0
    assert path.stat().st_size > 0
