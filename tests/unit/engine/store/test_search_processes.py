"""Searches in further processes: the same answers, every acknowledged change, and none without an answer."""

from __future__ import annotations

import asyncio
import pickle
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from kb_contracts.access.reach import Reach
from kb_engine.index.embedded import index as embedded
from kb_engine.index.embedded import vectors
from kb_engine.store.port import Found, Query
from kb_engine.store.repository import documents
from kb_engine.store.sqlite import reading, reserve, search_processes
from kb_engine.store.sqlite.search_processes import SearchProcesses
from kb_engine.store.sqlite.sqlite_store import SqliteStore
from kb_readers.child import reader_command
from tests.support.eventually import eventually_async
from tests.support.patience import SILENCE
from tests.support.stores import Base, meaning, opened

pytestmark = pytest.mark.process

Handed = list[Found]
"""The answers of search processes."""


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Handed:
    answered: Handed = []
    found = SearchProcesses.found

    async def noting(self: SearchProcesses, query: Query) -> Found | None:
        if (answer := await found(self, query)) is not None:
            answered.append(answer)
        return answer

    monkeypatch.setattr(SearchProcesses, "found", noting)
    return answered


@pytest.fixture
async def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Base]:
    monkeypatch.setattr(search_processes, "_OVERLAPS", 1)
    monkeypatch.setattr(embedded, "TAIL_ROWS", 8)  # segments of a few chunks
    async with opened(tmp_path / "kb.sqlite", search_processes=2) as base:
        yield base


async def ask(base: Base, text: str = "apple fig") -> Found:
    return await base.find(text, "hybrid", vector=meaning(text))


async def shared(base: Base) -> None:
    """Search from several tasks until the processes have the latest state of the index."""
    assert isinstance(base.store, SqliteStore)
    beside, index = base.store.search_processes, base.store._index
    assert beside is not None

    async def is_shared() -> bool:
        await asyncio.gather(*(ask(base) for _ in range(4)))
        return beside.state is index.state

    await eventually_async(is_shared)


def processes() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it ends meanwhile
            if search_processes._PROGRAM in child.cmdline():
                found.append(child)
    return found


async def fill(base: Base) -> None:
    for number in range(12):
        texts = [f"apple {number % 3} pear {place} fig {number}" for place in range(3)]
        await base.note(
            *texts,
            title=f"n{number}",
            tags=["a" if number % 2 else "b"],
            metadata={"larger than 64 bits": 1 << 70},
            dedup_scope=str(number),
        )
    gone = await base.find("n3 apple", top=1)
    await base.store.once(None, documents.delete, gone.results[0].document.id)


async def test_a_search_process_answers_like_the_engine(base: Base, handed: Handed) -> None:
    await fill(base)
    reach = Reach(frozenset({"a"}))
    questions: list[dict[str, Any]] = [
        {"mode": mode, "vector": meaning("fig"), "explain": True, "top": 50, **filters}
        for mode in ("fts", "vector", "hybrid")
        for filters in ({}, {"tags": ["a"]}, {"reach": reach}, {"min_score": 0.3})
    ]

    async def answers() -> list[Found]:
        return [await base.find("apple fig 5", **each) for each in questions]

    here = await answers()
    assert not handed

    async def are_handed() -> bool:
        await shared(base)
        handed.clear()
        assert await answers() == here
        return len(handed) >= len(questions)  # fewer if the index was merged meanwhile

    await eventually_async(are_handed)


@pytest.mark.parametrize("cores", [0, 4])
async def test_searches_of_a_large_index_are_handed_over_if_cores_are_spare(
    base: Base, handed: Handed, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    await fill(base)
    await shared(base)
    monkeypatch.setattr(vectors, "BESIDE_ROWS", 1)
    monkeypatch.setattr(reading, "SPARE_CORES", cores)
    handed.clear()
    await ask(base)
    assert not handed

    async def are_handed() -> bool:
        handed.clear()
        await asyncio.gather(*(ask(base) for _ in range(reading.SEARCHES + cores)))
        assert len(handed) <= cores
        return len(handed) == cores

    await eventually_async(are_handed)


async def test_a_search_sees_every_change_that_was_acknowledged_before(base: Base, handed: Handed) -> None:
    await fill(base)
    await shared(base)

    async def writer(number: int) -> None:
        word = "plum" + chr(ord("a") + number)
        note = await base.note(f"apple {word}", dedup_scope=word)
        assert [one.document.id for one in (await base.find(word)).results] == [note.id]
        await base.store.once(None, documents.add_tags, note.id, [word], None)
        assert [one.document.id for one in (await base.find("apple", tags=[word])).results] == [note.id]
        if number % 2:
            await base.store.once(None, documents.delete, note.id)
            assert (await base.find(word)).results == []
        await shared(base)  # the processes get a state between two changes

    async def searcher() -> None:
        for _ in range(40):
            assert len((await base.find("apple", top=100)).results) >= 33
            await asyncio.sleep(0)

    async def in_turns(first: int) -> None:
        for number in range(first, 24, 3):
            await writer(number)

    handed.clear()
    await asyncio.gather(*(in_turns(first) for first in range(3)), *(searcher() for _ in range(3)))
    await shared(base)
    assert handed


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_searches_of_a_killed_or_silent_process_are_answered(
    base: Base, handed: Handed, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(search_processes, "_FAILURE_PAUSE", SILENCE)
    await fill(base)
    await shared(base)
    expected = await base.find("apple", top=100)
    before = processes()
    for each in before:
        each.send_signal(number)
    with monkeypatch.context() as patch:
        if number == signal.SIGSTOP:
            patch.setattr(search_processes, "_SILENT_SECONDS", SILENCE)
        assert [await base.find("apple", top=100) for _ in range(4)] == [expected] * 4
    handed.clear()

    async def is_handed() -> bool:
        await shared(base)
        assert await base.find("apple", top=100) == expected
        return bool(handed)

    await eventually_async(is_handed)
    assert not {each.pid for each in before} & {each.pid for each in processes()}


async def test_a_search_process_rounds_like_the_engine_has_no_key_and_ends_first_without_memory(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("KB_ENGINE_KEY", "secret")
    await fill(base)
    await shared(base)
    process = processes()[0]
    assert process.environ()["OPENBLAS_CORETYPE"] == "Haswell"
    assert "secret" not in process.environ().values()
    assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n"


async def test_a_query_that_cannot_be_sent_takes_no_answer_of_another(base: Base) -> None:
    await fill(base)
    await shared(base)
    texts = ["fig 1", "fig 2", "pear", "apple"]
    expected = [await ask(base, text) for text in texts]
    await shared(base)
    for _ in processes():
        with pytest.raises((AttributeError, pickle.PicklingError)):
            await base.find("apple", arrange=lambda results: results)
    assert await asyncio.gather(*(ask(base, text) for text in texts)) == expected


async def test_the_processes_that_can_be_started_are_used(
    base: Base, handed: Handed, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = iter([reader_command(search_processes._PROGRAM), ["/no program"]])
    monkeypatch.setattr(search_processes, "reader_command", lambda _: next(commands))
    await fill(base)
    await shared(base)
    await ask(base)
    assert handed
    assert len(processes()) == 1


async def test_nothing_is_shared_in_the_space_for_deletions(
    base: Base, handed: Handed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await base.note("apple fig")
    monkeypatch.setattr(search_processes, "_FAILURE_PAUSE", SILENCE)
    with monkeypatch.context() as full:
        full.setattr(reserve, "RESERVE_BYTES", 1 << 62)

        async def is_refused() -> bool:
            await asyncio.gather(*(ask(base) for _ in range(4)))
            return "searches run in this process only" in caplog.text

        await eventually_async(is_refused)
        assert not handed
    await shared(base)


async def test_unused_processes_end_and_leave_nothing(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_processes, "_UNUSED_SECONDS", SILENCE)
    await fill(base)
    await asyncio.gather(*(ask(base) for _ in range(4)))
    await eventually_async(processes)
    await eventually_async(lambda: not processes() and not search_processes.folder_of(base.path).exists())
    assert len((await ask(base)).results) == 10


async def test_the_files_of_a_killed_engine_are_removed(tmp_path: Path) -> None:
    folder = search_processes.folder_of(tmp_path / "kb.sqlite")
    folder.mkdir()
    (folder / "left").touch()
    async with opened(tmp_path / "kb.sqlite"):
        assert not folder.exists()
