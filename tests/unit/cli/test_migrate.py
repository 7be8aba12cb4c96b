"""`kb migrate`: a complete copy of a base into another one, on either store."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from kb_cli.output import Exit
from kb_engine.app import create_app
from kb_engine.care.migration import BATCH, Migrated, MigrationRefused, migrate
from kb_engine.composition import open_store
from kb_engine.settings import EngineSettings
from kb_engine.store.port import BaseUnfinished, EmbedderIdentity
from kb_engine.store.sqlite.opening import own
from tests.support.postgres import Database
from tests.support.stores import DIMENSIONS, Place, new_place, opened
from tests.unit.cli.conftest import Kb
from tests.unit.cli.whole_bases import answers, documents, fill, running

pytestmark = pytest.mark.process

KEPT = "basalt columns of the north coast"
REMOVED = "gneiss of the far valley"
IDENTITY = EmbedderIdentity("test", DIMENSIONS)


def store_of(place: Place) -> str:
    return place.url if isinstance(place, Database) else f"sqlite:{place}"


def fill_further(kb: Kb, http: httpx.Client) -> None:
    """Add versions, a trash, feedback, two sources of one document, and an unused document number."""
    fill(kb, http)
    for number, text in enumerate((KEPT, "slate roofs", REMOVED, "purged at once"), 7):
        assert kb.note(text, "--source-path", f"{number}.md", "--collection", "stones") == number
    kb.note(KEPT, "--source-path", "again.md", "--collection", "stones")
    kb("updatenote", "7", f"{KEPT} and south")
    kb("updatenote", "7", KEPT)
    kb("rm", "9", "--yes")
    kb("rm", "10", "--yes", "--purge")
    give(http, "anna")


def give(http: httpx.Client, voice: str) -> Any:
    path, signal_ = "/api/v1/documents/7/feedback", {"signal": "useful"}
    return http.put(path, json=signal_, headers={"X-User-ID": voice}).raise_for_status().json()


def seen(kb: Kb, http: httpx.Client) -> dict[str, Any]:
    """Return all that the API shows of a base, without the ids of chunks."""
    listed = http.get("/api/v1/documents", params={"sort_by": "id", "sort_order": "asc"}).json()["documents"]
    passages = {
        each["id"]: [
            {name: value for name, value in chunk.items() if name != "id"}
            for chunk in http.get(f"/api/v1/documents/{each['id']}").json()["chunks"]
        ]
        for each in listed
    }
    collections = http.get("/collections").json()["collections"]
    return {
        "documents": listed,
        "passages": passages,
        "versions": [
            kb.json("history", "7", str(each["version"])) for each in kb.json("history", "7")["versions"]
        ],
        "trash": kb.json("history"),
        "collections": [http.get(f"/collections/{each['id']}").json() for each in collections],
    }


def files(http: httpx.Client, listed: list[Any]) -> dict[str, bytes]:
    kept = [each for each in listed if each.get("original")]
    return {each["sha256"]: http.get(f"/api/v1/documents/{each['uid']}/original").content for each in kept}


@pytest.mark.parametrize(
    ("one", "two"),
    [("sqlite", "postgres"), ("postgres", "sqlite")],
)
def test_a_base_is_moved_with_all_that_it_keeps(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, two: str
) -> None:
    """Documents, chunks, versions, trash, feedback and descriptions, with equal search results and scores."""
    (tmp_path / "two").mkdir()
    (tmp_path / "one").mkdir()
    source, target = (store_of(asyncio.run(new_place(kind, tmp_path / name))) for kind, name in
                      ((one, "one"), (two, "two")))  # fmt: skip
    with running(tmp_path / "one", monkeypatch, store=source) as http:
        fill_further(kb, http)
        held, expected, listed = seen(kb, http), answers(http), documents(http)
        sent = files(http, listed)
    made = kb.json("migrate", source, target)
    assert (made["documents"], made["copied"], made["versions"]) == (8, 8, 4)
    with running(tmp_path / "two", monkeypatch, store=target) as http:
        assert seen(kb, http) == held
        assert documents(http) == listed
        assert files(http, listed) == sent
        assert len(sent) == made["files"] > 0
        assert answers(http) == expected
        cited = [result["citation"] for answer in expected for result in answer["results"]]
        checked = [http.post("/api/v1/citations/check", json=each).json()["status"] for each in cited]
        assert set(checked) == {"there"}
        assert give(http, "boris")["voices"] == 2
        kb("history", "9", "--restore")
        assert kb.json("search", REMOVED, "--mode", "fts")["results"][0]["document"]["id"] == 9
        assert kb.note("The next one has a number that was never given") == 11


def test_a_second_run_compares_and_changes_nothing(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = f"sqlite:{tmp_path / 'one.sqlite'}", f"sqlite:{tmp_path / 'two.sqlite'}"
    with running(tmp_path / "home", monkeypatch, store=source) as http:
        fill_further(kb, http)
    first = kb.json("migrate", source, target)
    second = kb.json("migrate", source, target)
    assert second == {**first, "copied": 0}
    back = kb.json("migrate", target, f"sqlite:{tmp_path / 'three.sqlite'}")
    assert back["digest"] == first["digest"]


def test_a_target_that_is_used_and_a_source_that_works_are_refused(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, used = (f"sqlite:{tmp_path / name}.sqlite" for name in ("one", "two", "used"))
    assert "there is none" in refused(kb, source, target)
    assert not (tmp_path / "one.sqlite").exists()
    with running(tmp_path / "home", monkeypatch, store=source) as http:
        fill_further(kb, http)
        assert "is using it" in refused(kb, source, target)
    assert "the same base" in refused(kb, source, f"sqlite:{tmp_path}/./one.sqlite")
    with running(tmp_path / "home", monkeypatch, store=used):
        kb.note("A text of its own")
    assert "has used the target" in refused(kb, source, used)
    change(tmp_path / "one.sqlite", "UPDATE jobs SET status = 'queued' WHERE seq = 1")
    assert "1 jobs of the source have not ended" in refused(kb, source, target)
    assert kb("migrate", source, "mysql://host/kb")[0] == Exit.USAGE


CHANGES = {
    "UPDATE documents SET title = 'Another' WHERE id = 8": "document 8 is another",
    "UPDATE chunks SET text = 'Another' WHERE document_id = 8": "document 8 is another",
    "UPDATE vectors SET vector = zeroblob(length(vector)) WHERE chunk_id = 2": "is another",
    "DELETE FROM feedback": "document 7 is another",
    "UPDATE versions SET text = 'Another' WHERE document_id = 9": "version 9 1 is another",
    "UPDATE collections SET description = 'Another'": "collection ",
    "UPDATE documents SET id = 99 WHERE id = 1": "document 99, which is not in the source",
    "DELETE FROM note_texts WHERE document_id = 7": "document 7 is another",
}


def test_a_target_that_was_changed_is_never_written_over(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = f"sqlite:{tmp_path / 'one.sqlite'}", f"sqlite:{tmp_path / 'two.sqlite'}"
    with running(tmp_path / "home", monkeypatch, store=source) as http:
        fill_further(kb, http)
    kb.json("migrate", source, target)
    change(tmp_path / "two.sqlite", "PRAGMA wal_checkpoint(TRUNCATE)")
    for number, (statement, words) in enumerate(CHANGES.items()):
        copy = tmp_path / f"{number}.sqlite"
        shutil.copyfile(tmp_path / "two.sqlite", copy)
        change(copy, statement)
        assert words in refused(kb, source, f"sqlite:{copy}")


def test_a_passage_without_its_vector_is_named(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = f"sqlite:{tmp_path / 'one.sqlite'}", f"sqlite:{tmp_path / 'two.sqlite'}"
    with running(tmp_path / "home", monkeypatch, store=source):
        kb.note("granite")
    with sqlite3.connect(tmp_path / "one.sqlite") as db:
        db.execute("DELETE FROM vectors")
    db.close()
    assert "kb check" in refused(kb, source, target)


def refused(kb: Kb, source: str, target: str) -> str:
    status, _, error = kb("migrate", source, target)
    assert (status, error.count("\n")) == (Exit.FAILED, 1)
    return error


def change(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
async def test_one_that_was_broken_off_goes_on_where_it_was(tmp_path: Path, kind: str) -> None:
    """The copy may stop at any step; copied documents are not copied again."""
    total = 2 * BATCH + 1
    source, target = tmp_path / "source/kb.db", await _places(tmp_path, kind)
    await _filled(source, total)
    settings = settings_of(tmp_path, source, target)
    left = []
    for _ in range(2):
        with pytest.raises(InterruptedError):
            await migrate(*settings, Allowed(1))
        left.append(await asyncio.to_thread(count, target))
        with pytest.raises(BaseUnfinished, match="Run `kb migrate` again"):
            await create_app(an_engine_of(settings[1]))
    assert left == [BATCH, 2 * BATCH]
    made = await migrate(*settings, lambda *_: None)
    assert isinstance(made, Migrated)
    assert (made.documents, made.copied) == (total, 1)
    async with opened(target, embedder=IDENTITY) as base:
        assert await base.count("documents") == total


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
async def test_a_target_is_marked_before_it_has_tables(tmp_path: Path, kind: str) -> None:
    """A target killed before the first copy is then not mistaken for an empty base."""
    source, target = tmp_path / "source/kb.db", await new_place(kind, tmp_path, empty=True)
    await _filled(source, 1)
    settings = settings_of(tmp_path, source, target)
    if isinstance(target, Path):
        own(target, unfinished=True).release()
        with pytest.raises(BaseUnfinished, match="Run `kb migrate` again"):
            await create_app(an_engine_of(settings[1]))
    store, _ = await open_store(settings[1], IDENTITY, unfinished=True)
    await store.close()
    with pytest.raises(BaseUnfinished, match="Run `kb migrate` again"):
        await create_app(an_engine_of(settings[1]))
    assert (await migrate(*settings, lambda *_: None)).copied == 1
    async with opened(target, embedder=IDENTITY) as base:
        assert await base.count("documents") == 1


def settings_of(folder: Path, source: Place, target: Place) -> tuple[EngineSettings, EngineSettings]:
    home = folder / "home"
    return (
        EngineSettings(home=home, store=store_of(source)),
        EngineSettings(home=home, store=store_of(target)),
    )


def an_engine_of(settings: EngineSettings) -> EngineSettings:
    return msgspec.structs.replace(settings, embedder="hash")


def test_a_target_that_was_not_completed_is_used_by_no_command(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither opened, copied nor re-embedded; as a source it would make another incomplete base."""
    source, target = tmp_path / "source/kb.db", tmp_path / "target.sqlite"
    asyncio.run(_filled(source, BATCH + 1))
    settings = settings_of(tmp_path, source, target)
    with pytest.raises(InterruptedError):
        asyncio.run(migrate(*settings, Allowed(1)))
    for name, value in (("HOME", str(tmp_path / "home")), ("STORE", store_of(target)), ("EMBEDDER", "hash")):
        monkeypatch.setenv(f"KB_{name}", value)
    for command in (
        ("check",),
        ("reindex",),
        ("backup", str(tmp_path / "copy")),
        ("migrate", store_of(target), f"sqlite:{tmp_path / 'third.sqlite'}"),
    ):
        status, _, error = kb(*command)
        assert (status, error.count("\n")) == (Exit.FAILED, 1), (command, error)
        assert "Run `kb migrate` again" in error
    assert not (tmp_path / "copy").exists()
    kb.json("migrate", store_of(source), store_of(target))
    assert kb("backup", str(tmp_path / "copy"))[0] == Exit.OK


class Allowed:
    """Stops the copy after a number of batches."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def __call__(self, what: str, done: int, total: int) -> None:
        if what == "copying":
            self._batches -= 1
            if self._batches < 0:
                raise InterruptedError


async def _places(tmp_path: Path, kind: str) -> Place:
    (tmp_path / kind).mkdir()
    return await new_place(kind, tmp_path / kind)


async def _filled(place: Path, notes: int) -> None:
    place.parent.mkdir()
    async with opened(place) as base:
        for number in range(notes):
            await base.note(f"text {number} of many", title=f"note {number}")


def count(place: Place) -> int:
    """Return the number of documents, even while the base is in use."""
    if isinstance(place, Database):
        return int(asyncio.run(place.value("SELECT count(*) FROM documents")))
    if not place.exists():
        return 0
    db = sqlite3.connect(f"file:{place}?mode=ro", uri=True)
    try:
        return int(db.execute("SELECT count(*) FROM documents").fetchone()[0])
    except sqlite3.OperationalError:  # it is being created
        return 0
    finally:
        db.close()


async def test_a_document_changed_during_the_comparison_fails_the_migration(tmp_path: Path) -> None:
    source, target = tmp_path / "one/kb.db", tmp_path / "two/kb.db"
    for place in (source, target):
        place.parent.mkdir()
    async with opened(source) as base:
        await base.note("text")
    settings = settings_of(tmp_path, source, target)

    def meddle(what: str, done: int, total: int) -> None:
        if what == "comparing" and total:
            change(target, "UPDATE documents SET version = 5")

    with pytest.raises(MigrationRefused, match="is another in the target"):
        await migrate(*settings, meddle)
