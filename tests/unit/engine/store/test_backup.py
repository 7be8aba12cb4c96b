"""A backup of a base in use has all that was acknowledged before it began, and a restore is complete."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from io import BytesIO
from operator import lt
from pathlib import Path

import apsw
import pytest

from kb_cli.client import EngineClient
from kb_contracts.api import models as m
from kb_contracts.api.operations import (
    CREATE_JOB,
    DELETE_DOCUMENT,
    GET_STATUS,
    LIST_DOCUMENTS,
    LIST_TRASH,
    RESTORE_VERSION,
    SEARCH,
    DocumentsQuery,
)
from kb_engine.store.sqlite.backup import BASE, MANIFEST, ORIGINALS, SPOOL, BackupRefused, back_up, restore
from kb_engine.store.sqlite.originals import originals_of
from tests.support.engines import API_KEY, engine
from tests.support.eventually import eventually
from tests.support.stores import new_note, opened, prepared


class Home:
    """A data folder in the engine's layout."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = path / "engine" / "kb.sqlite"
        self.spool = path / "engine" / "spool"
        self.keys = path / "keys.json"

    def back_up(self, to: Path) -> None:
        back_up(self.database, self.spool, self.keys, to)

    def restore(self, copy: Path) -> None:
        restore(copy, self.database, self.spool, self.keys)


class Writers:
    """Sends notes and files in succession until the end; `acknowledged` has the time of each."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ended = threading.Event()
        self.acknowledged: dict[str, float] = {}
        self._threads = [threading.Thread(target=self._send, args=(kind,)) for kind in ("note", "file")]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _send(self, kind: str) -> None:
        with EngineClient(self._url, API_KEY) as client:
            number = 0
            while not self._ended.is_set():
                number += 1
                title, text = f"{kind} {number}", f"{kind}{number} of granite, and what the quarry gave"
                if kind == "note":
                    client.call(CREATE_JOB, body=m.NoteRequest(text=text, title=title))
                else:
                    client.send_file(f"{number}.txt", BytesIO(text.encode()), m.FileFields(title=title))
                self.acknowledged[title] = time.monotonic()


def titles(url: str) -> set[str]:
    with EngineClient(url, API_KEY) as client:
        eventually(lambda: client.call(GET_STATUS).queue, lambda queue: queue.queued == queue.running == 0)
        found: list[m.Document] = []
        while page := client.call(
            LIST_DOCUMENTS, query=DocumentsQuery(limit=1_000, offset=len(found))
        ).documents:
            found += page
        return {document.title for document in found}


@pytest.mark.process
def test_copies_of_a_base_that_is_written_have_all_that_was_acknowledged_before(tmp_path: Path) -> None:
    """Documents, and uploads with queued jobs, are all in the restored base."""
    home = Home(tmp_path / "home")
    begun: list[float] = []
    with engine(home.path) as url, Writers(url) as writers:
        eventually(lambda: writers.acknowledged, lambda acknowledged: "file 7" in acknowledged)
        for number in range(3):
            eventually(lambda: len(writers.acknowledged), partial(lt, 40 * (number + 1)))
            begun.append(time.monotonic())
            home.back_up(tmp_path / f"copy{number}")
    for number, moment in enumerate(begun):
        restored = Home(tmp_path / f"restored{number}")
        restored.restore(tmp_path / f"copy{number}")
        before = {title for title, at in writers.acknowledged.items() if at < moment}
        with engine(restored.path) as url:
            there = titles(url)
            with EngineClient(url, API_KEY) as client:
                answer = client.call(SEARCH, body=m.SearchRequest(query="file7 granite", top=1))
        assert before <= there
        assert len(before) > 40 * (number + 1)
        assert answer.results[0].document.title == "file 7"


async def filled(home: Home) -> None:
    home.spool.mkdir(parents=True)
    async with opened(home.database) as base:
        for text in ("granite quarry", "basalt columns"):
            await base.ingest(new_note(text), prepared(text))


async def test_a_backup_lists_its_files_and_is_private_to_its_owner(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    await filled(home)
    made = back_up(home.database, home.spool, home.keys, tmp_path / "copy")
    assert (made.documents, made.uploads, list(made.files)) == (2, 0, [BASE])
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {BASE, SPOOL, ORIGINALS, MANIFEST}
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


@pytest.mark.parametrize("had", [None, "others"])
async def test_a_restored_base_has_its_keys_unless_others_are_there(tmp_path: Path, had: str | None) -> None:
    """Without them it would be open to everyone."""
    home, restored = Home(tmp_path / "home"), Home(tmp_path / "restored")
    await filled(home)
    home.keys.write_text("its keys")
    home.back_up(tmp_path / "copy")
    restored.path.mkdir()
    if had is not None:
        restored.keys.write_text(had)
    restored.restore(tmp_path / "copy")
    assert restored.keys.read_text() == (had or "its keys")
    assert had or restored.keys.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in restored.path.iterdir()} == {"engine", "keys.json"}


async def _existing(home: Home, copy: Path) -> None:
    copy.mkdir()


async def _missing(home: Home, copy: Path) -> None:
    home.database.unlink()


async def _hurt_text(home: Home, copy: Path) -> None:
    with apsw.Connection(str(home.database)) as db:
        db.execute("UPDATE note_texts SET text = 'something else' WHERE document_id = 1")


async def _hurt_pages(home: Home, copy: Path) -> None:
    with apsw.Connection(str(home.database)) as db:
        db.pragma("wal_checkpoint", "truncate")
    content = bytearray(home.database.read_bytes())
    content[4096:] = bytes(reversed(content[4096:]))
    home.database.write_bytes(content)


async def _waits_for_a_lost_file(home: Home, copy: Path) -> None:
    async with opened(home.database) as base:
        await base.accept(new_note("x", id="00000000-0000-4000-8000-000000000001", spool="lost", text=None))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_existing, "is there already"),
        (_missing, "there is no base"),
        (_hurt_text, "document 1 is not what was sent"),
        (_hurt_pages, r"kb.sqlite: its tables are damaged|the base is damaged"),
        (_waits_for_a_lost_file, "files that belong to it are missing: lost"),
    ],
)
async def test_a_refused_backup_leaves_no_files(
    tmp_path: Path, spoil: Callable[[Home, Path], object], why: str
) -> None:
    home, copy = Home(tmp_path / "home"), tmp_path / "copy"
    await filled(home)
    await spoil(home, copy)  # type: ignore[misc]
    with pytest.raises(BackupRefused, match=why):
        home.back_up(copy)
    assert not (copy / MANIFEST).exists()
    assert not copy.with_name("copy.partial").exists()


def with_files(home: Home) -> None:
    """Create two documents of files, one of them in the trash, and one of a note."""
    with engine(home.path) as url, EngineClient(url, API_KEY) as client:
        for text in ("granite", "basalt"):
            client.send_file(f"{text}.txt", BytesIO(text.encode()), m.FileFields())
        client.call(CREATE_JOB, body=m.NoteRequest(text="marble"))
        titles(url)
        listed = client.call(LIST_DOCUMENTS).documents
        (basalt,) = (each.id for each in listed if each.filename == "basalt.txt")
        client.call(DELETE_DOCUMENT, path={"document_id": basalt})


def test_files_that_are_kept_are_copied_and_come_back(tmp_path: Path) -> None:
    home, restored = Home(tmp_path / "home"), Home(tmp_path / "restored")
    with_files(home)
    made = back_up(home.database, home.spool, home.keys, tmp_path / "copy")
    assert (made.documents, made.originals) == (2, 2)
    restored.restore(tmp_path / "copy")
    with engine(restored.path) as url, EngineClient(url, API_KEY) as client:
        (removed,) = client.call(LIST_TRASH).versions
        client.call(RESTORE_VERSION, path={"document_id": removed.document_id, "version": removed.version})
        files = [each for each in client.call(LIST_DOCUMENTS).documents if each.filename]
        assert len(files) == 2
        for each in files:
            client.read_original(each.id, received := BytesIO())
            assert f"{received.getvalue().decode()}.txt" == each.filename


@pytest.mark.parametrize(("damage", "why"), [(Path.unlink, "are missing"), (None, "is not what was sent")])
def test_a_base_whose_kept_file_is_hurt_is_not_copied(
    tmp_path: Path, damage: Callable[[Path], object] | None, why: str
) -> None:
    home = Home(tmp_path / "home")
    with_files(home)
    file = next(originals_of(home.database).iterdir())
    if damage is None:
        file.write_bytes(b"other")
    else:
        damage(file)
    with pytest.raises(BackupRefused, match=why) as caught:
        home.back_up(tmp_path / "copy")
    assert file.name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "why"), [(BASE, "damaged, or changed.*kb.sqlite"), (MANIFEST, "no copy of a base")]
)
async def test_a_damaged_copy_is_not_restored(tmp_path: Path, name: str, why: str) -> None:
    home, restored = Home(tmp_path / "home"), Home(tmp_path / "restored")
    await filled(home)
    home.back_up(tmp_path / "copy")
    hurt = tmp_path / "copy" / name
    hurt.write_bytes(hurt.read_bytes()[:-10])
    with pytest.raises(BackupRefused, match=why):
        restored.restore(tmp_path / "copy")
    assert not restored.database.exists()


async def test_a_restore_over_an_existing_base_is_refused(tmp_path: Path) -> None:
    """Nor beside a log that SQLite would apply to the new base."""
    home, restored = Home(tmp_path / "home"), Home(tmp_path / "restored")
    await filled(home)
    home.back_up(tmp_path / "copy")
    with pytest.raises(BackupRefused, match="is there already"):
        home.restore(tmp_path / "copy")
    restored.database.parent.mkdir(parents=True)
    log = restored.database.with_name("kb.sqlite-wal")
    log.write_bytes(b"x")
    with pytest.raises(BackupRefused, match=r"kb\.sqlite-wal is there already"):
        restored.restore(tmp_path / "copy")
    log.unlink()
    restored.restore(tmp_path / "copy")
    async with opened(restored.database) as base:
        (found,) = (await base.find("granite")).results
        assert found.chunk.text == "granite quarry"


async def test_of_a_damaged_base_the_rest_is_copied_where_that_is_wanted(tmp_path: Path) -> None:
    """Each thing that was left out is named, in the manifest too; what is restored of the copy is whole."""
    home, restored = Home(tmp_path / "home"), Home(tmp_path / "restored")
    with_files(home)
    with apsw.Connection(str(home.database)) as db:
        db.execute("UPDATE jobs SET spool = 'lost', retryable = 1 WHERE seq = 1")
    file = sorted(originals_of(home.database).iterdir())[0]
    file.write_bytes(b"other")
    with apsw.Connection(str(home.database)) as db:
        db.execute("UPDATE note_texts SET text = 'something else'")
        db.execute("UPDATE versions SET text = 'something else'")
    with pytest.raises(BackupRefused, match=r"kb backup --damaged copies what is whole"):
        home.back_up(tmp_path / "copy")
    made = back_up(home.database, home.spool, home.keys, tmp_path / "copy", damaged=True)
    for expected in (
        "is not what was sent",
        "of version 1 of document",
        f"kept file {file.name}",
        "upload lost",
    ):
        assert any(expected in each for each in made.left_out), expected
    assert (len(made.left_out), made.documents) == (4, 1)
    assert '"left_out"' in (tmp_path / "copy" / MANIFEST).read_text()
    restored.restore(tmp_path / "copy")
    assert back_up(restored.database, restored.spool, restored.keys, tmp_path / "again").left_out == []


async def test_a_hurt_passage_and_a_lost_text_keep_a_base_from_being_copied(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    await filled(home)
    with apsw.Connection(str(home.database)) as db:
        db.execute("UPDATE chunks SET text = 'granite quarrY' WHERE document_id = 1")
        db.execute("DELETE FROM note_texts WHERE document_id = 2")
    with pytest.raises(BackupRefused, match=r"passages of document 1 .*; the text of document 2 is gone"):
        home.back_up(tmp_path / "copy")
