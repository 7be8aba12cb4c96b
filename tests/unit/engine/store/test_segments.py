"""The index files beside a base: however they are damaged, searches find all chunks of the base."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kb_engine.index import words
from kb_engine.index.embedded import block
from kb_engine.index.embedded import index as embedded
from kb_engine.index.embedded.block import open_segment, write_segment
from kb_engine.index.words import ANALYSER, EARLIER_ANALYSERS
from kb_engine.store.repository import documents
from kb_engine.store.sqlite import segments
from tests.support.eventually import eventually_async
from tests.support.patience import ANSWER_SECONDS
from tests.support.stores import DIMENSIONS, Base, all_documents, direct, left_by_a_crash, meaning, opened

WORDS = ["apple", "pear", "plum", "fig"]


@pytest.fixture(autouse=True)
def small_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment of a few chunks."""
    monkeypatch.setattr(embedded, "TAIL_ROWS", 8)


async def notes(base: Base, first: int, count: int) -> None:
    """Add documents of three chunks each, with words that depend on their number."""
    for number in range(first, first + count):
        texts = [f"{WORDS[number % 4]} {WORDS[number % 3]} {place} {number}" for place in range(3)]
        await base.note(
            *texts, title=f"n{number}", tags=["a" if number % 2 else "b"], dedup_scope=str(number)
        )


async def answers(base: Base) -> list[tuple[str, int, float]]:
    """Return the results of searches with all scores, with and without a filter."""
    found = []
    for filters in ({}, {"tags": ["a"]}):
        for mode in ("fts", "vector", "hybrid"):
            query = "apple fig"
            answer = await base.find(query, mode, vector=meaning(query), top=1_000, **filters)
            found += [(one.document.title, one.chunk.index, one.score) for one in answer.results]
    return found


def files(base: Base) -> set[str]:
    return {file.name for file in segments.folder_of(base.path).iterdir()}


async def tidied(base: Base) -> None:
    """Wait until no merge or removal is due."""

    def left_to_do() -> object:
        state = base.store._index.state
        return files(base) ^ {part.name for part in state.parts if part.name} or embedded.next_union(state)

    await eventually_async(left_to_do, lambda left: not left, what="the upkeep")


Filled = tuple[Path, list[tuple[str, int, float]]]
"""A base and the results of its searches."""


@pytest.fixture
async def filled(once: list[Filled], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Filled:
    """A copy of a base with several segments and further chunks, some of each removed."""
    if not once:
        once.append(await fill(tmp_path_factory.mktemp("filled") / "kb.db"))
    path, found = once[0]
    shutil.copytree(path.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / path.name, found


@pytest.fixture(scope="module")
def once() -> list[Filled]:
    """Empty until a test has filled the base."""
    return []


async def fill(path: Path) -> Filled:
    async with opened(path) as base:
        await notes(base, 0, 30)
        for one in (await all_documents(base)).documents[::5]:
            await base.store.once(None, documents.delete, one.id)
    number = 30
    while True:  # until upkeep, which runs until the close, has left more than one
        async with opened(path) as base:
            await notes(base, number, 3)
            await tidied(base)
            found = await answers(base)
        if len(files(base)) > 1:
            return path, found
        number += 3


class NoticedLock:
    """A lock that says when it is wanted."""

    def __init__(self) -> None:
        self.wanted, self._lock = threading.Event(), threading.Lock()

    def __enter__(self) -> None:
        self.wanted.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


async def test_a_search_waits_for_a_commit_only_if_it_sees_its_change(tmp_path: Path) -> None:
    async with opened(tmp_path / "kb.db") as base:
        await notes(base, 0, 1)
        earlier = base.store._index.latest
        await notes(base, 1, 1)
        await tidied(base)
    async with opened(tmp_path / "kb.db") as base:
        index = base.store._index
        latest, index.guard = index.latest, NoticedLock()
        with index.guard:  # as a commit does while it is synced
            found = await asyncio.wait_for(base.find("apple pear", top=9), ANSWER_SECONDS)
            assert found.total == 6
            index.publish(*earlier)
            index.guard.wanted.clear()
            search = asyncio.create_task(base.find("apple pear", top=9))
            await asyncio.to_thread(index.guard.wanted.wait, ANSWER_SECONDS)
            index.publish(*latest)
        assert (await search).total == 6


async def test_a_base_opens_with_the_index_that_it_had(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, expected = filled
    read: list[tuple[int, int]] = []
    batches = segments._batches

    def noted(*args: object) -> object:
        read.append(args[-2:])  # type: ignore[arg-type]
        return batches(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(segments, "_batches", noted)
    async with opened(path) as base:
        assert await answers(base) == expected
        last = max(part.block.chunk_ids[-1] for part in base.store._index.state.parts if part.name)
        assert read == [(last + 1, segments._ALL)]


def cut(folder: Path) -> None:
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:-1])


def spoilt(folder: Path) -> None:
    for file in folder.iterdir():
        file.write_bytes(b"spoilt" * 1_000)


def one_missing(folder: Path) -> None:
    min(folder.iterdir()).unlink()


def swapped(folder: Path) -> None:
    """Exchange two segments."""
    first, second, *_ = sorted(folder.iterdir())
    first.rename(folder / "x")
    second.rename(first)
    (folder / "x").rename(second)


def exchanged(folder: Path) -> None:
    """Replace a segment by rows of another, with the row count that the base expects."""
    with closing(sqlite3.connect(folder.with_suffix(""))) as db:
        counted = db.execute(
            "SELECT s.name, count(*) FROM index_segments s JOIN chunks c ON c.id BETWEEN s.first AND s.last "
            "GROUP BY s.name"
        ).fetchall()
    (small, count), (large, _) = sorted(counted, key=lambda each: each[1])[:2]
    rows = open_segment(folder / large, len(meaning("apple")))
    (folder / small).unlink()
    write_segment(folder / small, [(rows, np.arange(len(rows)) < count)])


def more(folder: Path) -> None:
    (folder / "left.new").write_bytes(b"half")
    shutil.copy(min(folder.iterdir()), folder / "copy")


@pytest.mark.parametrize("damage", [shutil.rmtree, cut, spoilt, one_missing, swapped, exchanged, more])
async def test_files_that_are_missing_or_damaged_are_made_again(
    filled: Filled, damage: Callable[[Path], None]
) -> None:
    path, expected = filled
    damage(segments.folder_of(path))
    for _ in range(2):
        async with opened(path) as base:
            assert await answers(base) == expected
            await notes(base, 100, 1)
            await base.store.once(None, documents.delete, (await all_documents(base)).documents[-1].id)
            assert await answers(base) == expected
            await tidied(base)


@pytest.mark.process
async def test_a_large_base_without_its_files_is_indexed_in_pieces(tmp_path: Path) -> None:
    """More chunks than are held in memory at once while a base is read."""
    async with opened(tmp_path / "kb.db") as base:
        await notes(base, 0, 60)
        await tidied(base)
        expected = await answers(base)
    shutil.rmtree(segments.folder_of(tmp_path / "kb.db"))
    async with opened(tmp_path / "kb.db") as base:
        assert await answers(base) == expected
        await tidied(base)
        assert await answers(base) == expected


async def test_an_older_copy_of_a_base_finds_what_it_held(tmp_path: Path) -> None:
    """The files beside it are newer; ids assigned again belong to different chunks."""
    async with opened(tmp_path / "kb.db") as base:
        await notes(base, 0, 12)
        older = left_by_a_crash(base, tmp_path / "older")
        await notes(base, 12, 30)
        await tidied(base)
    shutil.rmtree(segments.folder_of(older))
    shutil.copytree(segments.folder_of(base.path), segments.folder_of(older))
    async with opened(older) as again, opened(tmp_path / "fresh.db") as fresh:
        await notes(again, 50, 12)
        await notes(fresh, 0, 12)
        await notes(fresh, 50, 12)
        assert await answers(again) == await answers(fresh)


@pytest.mark.parametrize("moment", ["_unite", "_replace", "sweep"])
async def test_a_death_at_any_step_of_the_upkeep_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Before and after each step: the files, their list in the base, and removals."""
    deaths: list[Path] = []
    owner: object = segments.Upkeep if moment == "_replace" else segments
    real = getattr(owner, moment)

    async with opened(tmp_path / "kb.db") as base:

        def dying(*args: object) -> object:
            for done in (lambda: None, lambda: real(*args)):
                answer = done()
                if len(deaths) < 6:
                    deaths.append(left_by_a_crash(base, tmp_path / f"death {len(deaths)}"))
            return answer

        monkeypatch.setattr(owner, moment, dying)
        await notes(base, 0, 8)
        await tidied(base)
        monkeypatch.undo()
        expected = dict.fromkeys(await answers(base))
        assert deaths
    for death in deaths:
        async with opened(death) as later:
            known = {one.title for one in (await all_documents(later)).documents}
            found = await answers(later)
            assert {title for title, _, _ in found} <= known
            if len(known) == 8:
                assert dict.fromkeys(found) == expected
            assert files(later) == {part.name for part in later.store._index.state.parts if part.name}


async def test_clearing_a_base_removes_its_files(tmp_path: Path) -> None:
    async with opened(tmp_path / "kb.db") as base:
        await notes(base, 0, 20)
        await tidied(base)
        await base.store.once(None, documents.clear)
        await tidied(base)
        assert (files(base), await answers(base)) == (set(), [])
        await notes(base, 0, 5)
        assert (await base.find("apple")).total > 0


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), MemoryError()])
async def test_a_failed_upkeep_is_reported_and_done_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(segments, "PAUSE_SECONDS", 0.01)
    async with opened(tmp_path / "kb.db") as base:
        with monkeypatch.context() as full:
            full.setattr(segments, "write_segment", fail)
            await notes(base, 0, 10)
            found = await answers(base)
            await eventually_async(
                lambda: caplog.text,
                lambda told: "maintenance of the search index failed" in told,
                what="the warning",
            )
        await tidied(base)
        assert files(base)
        assert await answers(base) == found


async def test_closing_writes_the_chunks_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start reads none from the base, and a death while they are written changes nothing."""
    path, deaths = tmp_path / "kb.db", list[Path]()
    real = segments.Upkeep._replace
    async with opened(path) as base:
        await notes(base, 0, 4)
        await tidied(base)
        await notes(base, 4, 1)
        gone = (await all_documents(base)).documents[1]
        await base.store.once(None, documents.delete, gone.id)
        await tidied(base)
        expected = await answers(base)
        assert base.store._index.state.tail is not None

        def dying(*arguments: Any) -> None:
            deaths.append(left_by_a_crash(base, tmp_path / "before"))
            real(*arguments)
            deaths.append(left_by_a_crash(base, tmp_path / "after"))

        monkeypatch.setattr(segments, "CLOSING_ROWS", 3)
        monkeypatch.setattr(segments.Upkeep, "_replace", dying)
    monkeypatch.undo()
    assert len(deaths) == 2
    for each in (path, *deaths):
        async with opened(each) as later:
            state = later.store._index.state
            assert (state.tail is None) == (each.parent.name != "before")
            assert await answers(later) == expected
            assert files(later) >= {part.name for part in state.parts if part.name}
            await notes(later, 10, 1)
            assert "n10" in {title for title, _, _ in await answers(later)}


async def test_a_base_closes_although_its_chunks_in_memory_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async with opened(tmp_path / "kb.db") as base:
        await notes(base, 0, 2)
        expected = await answers(base)
        monkeypatch.setattr(segments, "CLOSING_ROWS", 3)
        monkeypatch.setattr(segments, "write_segment", fail)
    assert "new passages were not added to the index files" in caplog.text
    monkeypatch.undo()
    async with opened(tmp_path / "kb.db") as again:
        assert await answers(again) == expected


@pytest.mark.parametrize("length", [4, 8 * DIMENSIONS])
async def test_a_damaged_vector_is_left_out(filled: Filled, length: int) -> None:
    """One of twice the length does not stand in for a missing one either."""
    path, before = filled
    with direct(path) as db:
        first, second = (chunk_id for (chunk_id,) in db.execute("SELECT id FROM chunks ORDER BY id LIMIT 2"))
        db.execute("UPDATE vectors SET vector = zeroblob(?) WHERE chunk_id = ?", (length, first))
        db.execute("DELETE FROM vectors WHERE chunk_id = ?", (second,))
    async with opened(path) as base:
        assert set(await answers(base)) < set(before)
        assert await base.store.lost_vectors() == 2


async def test_searches_go_on_while_parts_are_united(tmp_path: Path) -> None:
    async with opened(tmp_path / "kb.db") as base:
        for number in range(25):
            await notes(base, number, 1)
            found = await base.find("apple pear plum fig", top=1_000)
            assert found.total == 3 * (number + 1)


EARLIER = EARLIER_ANALYSERS[0]


@pytest.fixture
async def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base indexed by an earlier analyser: without identifiers, and without languages of documents."""
    with monkeypatch.context() as before:
        for module in (block, embedded):
            before.setattr(module, "ANALYSER", EARLIER)
        before.setattr(block.Block.__init__, "__defaults__", (EARLIER, None))
        before.setattr(words, "identifiers", lambda _text: [])
        async with opened(tmp_path / "kb.db") as base:
            await base.note("set KB_EMBEDDER here", title="whole", dedup_scope="w")
            for number in range(12):
                await base.note(f"kb kb embedder embedder {number}", title="parts", dedup_scope=str(number))
            await base.note("Die Häuser wurden alle im letzten Jahr verkauft.", title="Häuser")
            await notes(base, 0, 12)
            await tidied(base)
            assert analysers(base) == {EARLIER}
    with direct(tmp_path / "kb.db") as db:
        db.execute("UPDATE documents SET language = NULL")
    return tmp_path / "kb.db"


def analysers(base: Base) -> set[str]:
    return {part.block.analyser for part in base.store._index.state.parts if part.name}


def notes_in(found: list[tuple[str, int, float]]) -> set[tuple[str, int]]:
    return {(title, index) for title, index, _ in found if title.startswith("n") and title != "new"}


async def first(base: Base, query: str) -> str | None:
    results = (await base.find(query, "fts", top=3)).results
    return results[0].document.title if results else None


async def renewed(base: Base) -> None:
    await eventually_async(lambda: analysers(base), lambda found: found == {ANALYSER}, what="the renewal")
    await tidied(base)


async def test_an_index_of_an_earlier_analyser_answers_until_it_has_been_made_anew(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks added and removed meanwhile are included, and the renewal happens once."""
    begin, may_end = threading.Event(), threading.Event()
    whole = segments._renewed

    def held(*arguments: Any) -> Any:
        made = whole(*arguments)
        begin.set()
        may_end.wait(ANSWER_SECONDS)
        return made

    monkeypatch.setattr(segments, "_renewed", held)
    async with opened(earlier) as base:
        assert await asyncio.to_thread(begin.wait, ANSWER_SECONDS)
        assert EARLIER in analysers(base)
        assert await first(base, "KB_EMBEDDER") == "parts"
        assert await first(base, "Haus") is None
        before = await answers(base)
        listed = (await all_documents(base)).documents
        gone = next(one for one in listed if one.title == "parts")
        await base.store.once(None, documents.delete, gone.id)
        await base.note("a new one of KB_EMBEDDER", title="new", dedup_scope="new")
        may_end.set()
        await renewed(base)
        assert await first(base, "KB_EMBEDDER") in ("whole", "new")
        assert await first(base, "Haus") == "Häuser"
        left = (await base.find("kb embedder", "fts", top=100)).results
        assert gone.id not in {one.document.id for one in left}
        assert len(left) == 13
        now = await answers(base)
        assert notes_in(now) == notes_in(before)
    monkeypatch.setattr(segments, "_renewed", None)  # no second renewal
    async with opened(earlier) as base:
        assert analysers(base) == {ANALYSER}
        assert await answers(base) == now


async def test_closing_does_not_wait_for_a_renewal(earlier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted renewal starts again at the next start."""
    begin, opening = threading.Event(), threading.Event()
    batches, read = segments._batches, []

    def slow(*arguments: Any) -> Iterator[Any]:
        for batch in batches(*arguments):
            if threading.current_thread().name.startswith("kb-index"):
                read.append(batch)
                begin.set()
                assert opening.wait(ANSWER_SECONDS)
                assert base.store._upkeep._stopped.wait(ANSWER_SECONDS)
            yield batch

    with monkeypatch.context() as slowly:
        slowly.setattr(segments, "_batches", slow)
        async with opened(earlier) as base:
            opening.set()
            assert await asyncio.to_thread(begin.wait, ANSWER_SECONDS)
    assert len(read) == 1
    async with opened(earlier) as again:
        await renewed(again)
        assert await first(again, "KB_EMBEDDER") == "whole"


async def test_an_index_of_an_unknown_analyser_is_made_when_the_base_is_opened(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "EARLIER_ANALYSERS", ())
    async with opened(earlier) as base:
        assert analysers(base) == {ANALYSER}
        assert await first(base, "KB_EMBEDDER") == "whole"
