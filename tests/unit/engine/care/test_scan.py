"""The scan of an idle base: it reports damage, and delays no caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kb_contracts.api.errors import EngineError
from kb_engine.care.scan import Pace, Position, Scan
from kb_engine.index.embedded import index as embedded
from kb_engine.index.embedded.block import is_sound
from kb_engine.ingest.pipeline import Pipeline
from kb_engine.store.repository import documents
from kb_engine.store.sqlite import segments
from kb_readers.model import Limits
from tests.support.eventually import eventually_async
from tests.support.ingesting import Parts, parts_in
from tests.support.stores import TestClock, direct


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    async with parts_in(tmp_path) as parts:
        yield parts


class Scanning:
    """A scan whose hours pass when a test says so; `pauses` holds the pauses since then."""

    def __init__(self, parts: Parts, place: Path, clock: TestClock, *, days: float) -> None:
        self.clock = clock
        self.is_idle = True
        self.pauses: list[float] = []
        pace = Pace(days, lambda: self.is_idle)
        pipeline = Pipeline(parts.encoder, Limits())
        self.scan = Scan(parts.store, parts.encoder, pipeline, place, pace, clock=clock, pause=self._pause)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    async def look(self, hours: float = 1.0) -> list[str]:
        """Let `hours` pass, wait for the slice that starts then, and return the damage found."""
        self.clock.move(hours=hours)
        await self.settled()
        return self.scan.issues

    async def settled(self) -> None:
        """Wait until no slice runs, which shows as three checks, one a minute, in succession."""
        self.pauses.clear()
        await eventually_async(lambda: self.pauses[-3:], lambda last: last == [60.0] * 3, what="a slice")


@asynccontextmanager
async def scanning(
    parts: Parts, place: Path, clock: TestClock | None = None, *, days: float = 7.0
) -> AsyncIterator[Scanning]:
    started = Scanning(parts, place, clock or TestClock(), days=days)
    started.scan.start()
    try:
        yield started
    finally:
        await started.scan.stop()


def hurt(folder: Path, *statements: str) -> None:
    with direct(folder / "kb.sqlite") as db:
        db.pragma("busy_timeout", 10_000)
        for statement in statements:
            db.execute(statement)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE note_texts SET text = 'other' WHERE document_id = 1", "not the one that was sent"),
        ("DELETE FROM vectors WHERE chunk_id = 1", "a vector is missing"),
        ("UPDATE chunks SET text = 'granitf' WHERE id = 1", "not what stands in its text"),
        ("UPDATE vectors SET vector = (SELECT vector FROM vectors WHERE chunk_id = 2) WHERE chunk_id = 1",
         "not that of its passage"),
    ],
    ids=["text", "vector", "passage", "meaning"],
)  # fmt: skip
async def test_the_scan_reports_a_damaged_document_and_changes_nothing(
    parts: Parts, tmp_path: Path, caplog: pytest.LogCaptureFixture, statement: str, what: str
) -> None:
    for text in ("granite", "basalt"):
        await parts.done(text)
    async with scanning(parts, tmp_path / "scan.json") as scan:
        assert await scan.look() == []
        hurt(tmp_path, statement)
        (issue,) = await scan.look(hours=7 * 24)
        assert ("Document 1 is damaged" in issue, what in issue) == (True, True)
        logged = [vars(each) for each in caplog.records if each.message == "a document is damaged"]
        assert [each["document"] for each in logged] == [1]
        assert await scan.look() == [issue]
        await parts.store.write(documents.delete, 1)
        assert await scan.look() == []


async def test_the_result_of_the_scan_survives_a_restart(parts: Parts, tmp_path: Path) -> None:
    await parts.done("granite")
    hurt(tmp_path, "UPDATE note_texts SET text = 'other'")
    place, clock = tmp_path / "scan.json", TestClock()
    async with scanning(parts, place, clock) as scan:
        found = await scan.look()
    async with scanning(parts, place, clock) as scan:
        await scan.settled()
        assert scan.scan.issues == found != []


async def test_the_scan_runs_only_while_the_engine_is_idle(parts: Parts, tmp_path: Path) -> None:
    await parts.done("granite")
    hurt(tmp_path, "UPDATE note_texts SET text = 'other'")
    async with scanning(parts, tmp_path / "scan.json") as scan:
        scan.is_idle = False
        assert await scan.look() == []
        scan.is_idle = True
        assert len(await scan.look(hours=0)) == 1


async def test_a_round_takes_its_days_and_then_rests(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is idle in between: one slice each hour, and none until the next round is due."""
    for number in range(6):
        await parts.done(f"granite {number}")
    monkeypatch.setattr("kb_engine.care.scan._LEAST_DOCUMENTS", 2)
    read: list[Any] = []
    run = parts.store.read

    async def noted(operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if operation.__name__ == "content":
            read.append(args[0])
        return await run(operation, *args, **options)

    monkeypatch.setattr(parts.store, "read", noted)
    async with scanning(parts, tmp_path / "scan.json") as scan:
        for expected in ([1, 2], [3, 4], [5, 6], [], []):
            read.clear()
            await scan.look()
            assert read == expected
        await scan.look(hours=7 * 24)
        assert read == [1, 2]


async def test_a_scan_that_is_switched_off_does_nothing(parts: Parts, tmp_path: Path) -> None:
    await parts.done("granite")
    hurt(tmp_path, "UPDATE note_texts SET text = 'other'")
    async with scanning(parts, tmp_path / "scan.json", days=0) as scan:
        assert "scan" not in {task.get_name() for task in asyncio.all_tasks()}
        assert scan.scan.issues == []


async def test_the_model_is_not_asked_where_it_is_paid_for(parts: Parts, tmp_path: Path) -> None:
    await parts.done("granite")
    parts.embedder.device = "remote"
    asked = len(parts.embedder.texts)
    async with scanning(parts, tmp_path / "scan.json") as scan:
        assert await scan.look() == []
        assert len(parts.embedder.texts) == asked
        parts.embedder.device = "cpu"
        assert await scan.look(hours=7 * 24) == []
        assert len(parts.embedder.texts) == asked + 1


async def test_a_damaged_file_of_the_index_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the file, which opening does not check."""
    monkeypatch.setattr(embedded, "TAIL_ROWS", 4)
    async with parts_in(tmp_path) as parts:
        for number in range(9):
            await parts.done(f"granite {number}")
        folder = segments.folder_of(tmp_path / "kb.sqlite")
        found = await eventually_async(
            lambda: [*folder.iterdir()],
            lambda files: len(files) == 1 and not embedded.next_union(parts.store._index.state),
            what="one file of the index, and no more to merge",
        )
        (file,) = found
        async with scanning(parts, tmp_path / "scan.json") as scan:
            assert await scan.look() == []
            with file.open("r+b") as content:
                content.write(b"\xff" * 8)
            (issue,) = await scan.look(hours=7 * 24)
            assert "Damaged files of the search index, rebuilt: 1" in issue
            assert await scan.look(hours=7 * 24) == [issue]
        assert all(is_sound(each) for each in folder.iterdir())
        assert file not in [*folder.iterdir()]


async def test_a_page_that_cannot_be_read_is_named(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await parts.done("granite")
    await parts.done("basalt")
    hurt(tmp_path, "UPDATE note_texts SET text = 'other' WHERE document_id = 2")
    run = parts.store.read

    async def damaged(operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if operation.__name__ == "content" and args == (1,):
            raise EngineError("internal", "The base is damaged.")
        return await run(operation, *args, **options)

    monkeypatch.setattr(parts.store, "read", damaged)
    async with scanning(parts, tmp_path / "scan.json") as scan:
        first, second = await scan.look()
    assert ("it cannot be read" in first, "Document 2" in second) == (True, True)


@pytest.mark.parametrize("error", [EngineError("not_ready", "away"), RuntimeError("other")])
async def test_a_scan_that_failed_goes_on(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await parts.done("granite")
    hurt(tmp_path, "UPDATE note_texts SET text = 'other'")

    async def away(*_: object) -> None:
        raise error

    async with scanning(parts, tmp_path / "scan.json") as scan:
        with monkeypatch.context() as broken:
            broken.setattr(parts.store, "read", away)
            assert await scan.look() == []
        assert len(await scan.look()) == 1


@pytest.mark.parametrize(("count", "named"), [(20, 20), (21, 20), (30, 20)])
async def test_twenty_hurt_documents_are_named_and_the_others_counted(
    parts: Parts, tmp_path: Path, count: int, named: int
) -> None:
    clock = TestClock()
    now, place = clock().timestamp(), tmp_path / "scan.json"
    hurt = {str(number): "it is damaged" for number in range(count)}
    place.write_bytes(msgspec.json.encode(Position(begun=now, looked_at=now, hurt=hurt)))
    async with scanning(parts, place, clock) as scan:
        await scan.settled()
        issues = scan.scan.issues
    assert [issue for issue in issues if "is damaged:" in issue] == issues[:named]
    further = (
        [f"More damaged documents: {count - named}. kb check --repair lists them"] if count > named else []
    )
    assert issues[named:] == further
