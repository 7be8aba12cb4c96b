"""A base of an earlier layout is migrated to the current one with all of its content."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from kb_contracts.api.ragler import collection_id
from kb_contracts.semantics.documents import WHITE_SPACE, note_hash, text_digest
from kb_engine.store.repository import collections, documents, jobs, state
from kb_engine.store.repository.content import passages_hash
from kb_engine.store.sqlite.connection import transaction
from kb_engine.store.sqlite.schema import MIGRATIONS, migrate
from tests.support.stores import all_documents, axis, direct, new_file, new_note, opened, prepared, visit

OLD_TIME = "2024-05-06T07:08:09.000000Z"
TEXTS = ["Pensions are revalued", "every April", "我今天去中国旅游了"]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A base of the first layout: a note of two chunks, a file of one, and an empty file."""
    path = tmp_path / "kb.db"
    with direct(path) as db:
        migrate(db, path, MIGRATIONS[:1])
        db.execute("INSERT INTO meta VALUES ('embedder', 'test'), ('dimensions', '8')")
        db.execute(
            "INSERT INTO documents VALUES "
            "(3, 'u3', 'note', 'Note', 'note', NULL, NULL, '/n', 10, 'h3', ?2, ?1), "
            "(5, 'u5', 'file', 'File', 'text', 'txt', 'f.txt', '/f', 20, 'h5', ?3, ?1), "
            "(6, 'u6', 'file', 'Scan', 'pdf', 'pdf', 's.pdf', NULL, 30, 'h6', '{}', ?1)",
            (OLD_TIME, '{"source_type": "manual"}', '{"source_type": 7}'),
        )
        db.execute("INSERT INTO note_texts VALUES (3, ?)", ("".join(TEXTS[:2]),))
        db.execute("INSERT INTO document_tags VALUES (3, 'z'), (3, 'collection:memory'), (5, 'a')")
        for chunk_id, (document_id, position) in enumerate([(3, 0), (3, 1), (5, 0)], 11):
            text = TEXTS[chunk_id - 11]
            db.execute(
                "INSERT INTO chunks (id, uid, document_id, position, text, page, heading, first, beyond) "
                "VALUES (?, ?, ?, ?, ?, 1, 'Top', 0, ?)",
                (chunk_id, f"c{chunk_id}", document_id, position, text, len(text)),
            )
            db.execute("INSERT INTO vectors VALUES (?, ?)", (chunk_id, axis(chunk_id - 11).tobytes()))
        db.execute("INSERT INTO chunk_text (chunk_text) VALUES ('rebuild')")
    return path


def columns(path: Path) -> set[str]:
    with direct(path) as db:
        return {name for _, name, *_ in db.execute("PRAGMA table_info (documents)")}


@pytest.mark.requirement("E28")
async def test_the_first_layout_has_no_updated_at_and_todays_has(old: Path) -> None:
    before = columns(old)
    assert "updated_at" not in before
    await visit(old)
    assert columns(old) >= before | {"updated_at"}


@pytest.mark.requirement("E29")
async def test_every_document_is_still_there_with_its_chunks_and_tags(old: Path) -> None:
    async with opened(old) as base:
        note, file, scan = (await all_documents(base)).documents
        detail = await base.detail("u3")
        text = (await base.store.read(documents.note, 3))[1]
    assert [(one.id, one.uid, one.title) for one in (note, file, scan)] == [
        (3, "u3", "Note"), (5, "u5", "File"), (6, "u6", "Scan"),
    ]  # fmt: skip
    assert {(one.created_at, one.updated_at, one.version) for one in (note, file, scan)} == {
        (OLD_TIME, OLD_TIME, 1)
    }
    assert (note.tags, file.tags, scan.tags) == (["z", "collection:memory"], ["a"], [])
    assert (note.source_paths, scan.source_paths) == (["/n"], [])
    assert (file.metadata, note.size_bytes, file.filename) == ({"source_type": 7}, 10, "f.txt")
    assert [(one.status, one.chunk_count) for one in (note, file, scan)] == [
        ("searchable", 2), ("searchable", 1), ("empty", 0),
    ]  # fmt: skip
    assert scan.status_reason
    assert [(c.id, c.uid, c.text, c.heading) for c in detail.chunks] == [
        (11, "c11", TEXTS[0], "Top"), (12, "c12", TEXTS[1], "Top"),
    ]  # fmt: skip
    assert text == TEXTS[0] + TEXTS[1]


@pytest.mark.requirement("E29")
async def test_everything_is_found_by_words_and_by_meaning(old: Path) -> None:
    """Also by words that the first layout could not find: a word in a Chinese sentence, and a title."""
    async with opened(old) as base:
        assert await base.titles("revalued pension") == ["Note"]
        assert await base.titles("中国") == ["File"]
        assert await base.titles("file") == ["File"]
        assert await base.titles("", "vector", vector=axis(1), min_score=0.9) == ["Note"]
        assert await base.titles("april", source_types=["manual"]) == ["Note"]
        assert await base.titles("中国", source_types=["7"]) == []
        counts = await base.store.read(state.counts)
    assert (counts.documents.total, counts.chunks, counts.last_updated) == (3, 3, OLD_TIME)


async def test_collections_are_there_with_their_figures(old: Path) -> None:
    """Tokens of old chunks are estimated at four characters each; those of new chunks are counted."""
    async with opened(old) as base:
        id_ = collection_id("memory")
        before = await base.store.read(collections.detail, id_)
        await base.note("one two three", tags=["collection:memory"])
        after = await base.store.read(collections.detail, id_)
    estimated = sum(-(-len(text) // 4) for text in TEXTS[:2])
    assert (before.chunk_count, before.created_at, before.updated_at) == (2, OLD_TIME, OLD_TIME)
    assert before.statistics.total_tokens == estimated
    assert (after.chunk_count, after.statistics.total_tokens) == (3, estimated + 3)


async def test_a_base_of_the_second_layout_keeps_its_columns_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "kb.db"
    with direct(path) as db:
        migrate(db, path, MIGRATIONS[:2])
        db.execute(
            "INSERT INTO documents (id, uid, kind, title, doc_type, size_bytes, sha256, created_at, "
            "updated_at, version, chunk_count) VALUES (1, 'u', 'file', 'File', 'text', 1, 'h', ?1, ?1, 7, 0)",
            (OLD_TIME,),
        )
        before = db.execute("SELECT * FROM documents").get
        names = [name for _, name, *_ in db.execute("PRAGMA table_info (documents)")]
    await visit(path)
    with direct(path) as db:
        assert db.execute(f"SELECT {', '.join(names)} FROM documents").get == before


async def test_existing_notes_are_known_without_trailing_white_space(tmp_path: Path) -> None:
    path = tmp_path / "kb.db"
    text = f"granite{WHITE_SPACE}"
    with direct(path) as db:
        migrate(db, path, MIGRATIONS[:15])
        db.execute(
            "INSERT INTO documents (id, uid, kind, title, doc_type, size_bytes, sha256, created_at, "
            "updated_at) VALUES (1, 'n', 'note', 'x', 'note', 1, 'h', ?1, ?1), "
            "(2, 'f', 'file', 'x', 'text', 1, 'h', ?1, ?1)",
            (OLD_TIME,),
        )
        db.execute("INSERT INTO note_texts VALUES (1, ?)", (text,))
        migrate(db, path)
        found = db.execute("SELECT sha256, note_hash FROM documents ORDER BY id").fetchall()
        assert found == [("h", note_hash("granite")), ("h", None)]
        assert db.execute("SELECT text FROM note_texts").get == text


async def test_existing_texts_have_their_hashes_unless_passages_are_missing(old: Path) -> None:
    with direct(old) as db:
        migrate(db, old, MIGRATIONS[:16])
        db.execute("DELETE FROM chunks WHERE document_id = 5")
        db.execute(
            "INSERT INTO versions (document_id, uid, version, removed, kept_at, expires_at, members, text, "
            "passages) VALUES (9, 'u9', 1, 1, '', '', '{}', 'granite', '[]')"
        )
        migrate(db, old)
        found = db.execute("SELECT id, passages_hash FROM documents ORDER BY id").fetchall()
        assert found == [(3, passages_hash(TEXTS[:2])), (5, None), (6, passages_hash([]))]
        assert db.execute("SELECT text_hash FROM versions").get == text_digest("granite")[0]


async def test_a_migrated_base_takes_changes_like_any_other(old: Path) -> None:
    async with opened(old) as base:
        changed = await base.update(3, "x", prepared("x"), version=1)
        assert (changed.created_at, changed.updated_at > OLD_TIME) == (OLD_TIME, True)
        await base.store.once(None, documents.delete, 5)
        assert await base.titles("中国") == []
        same = new_note("x", tags=["collection:memory"], dedup_scope="collection:memory")
        assert (await base.ingest(same, prepared("x"))).document_id == 3
        assert (await base.note("new")).id == 7


def dump(path: Path) -> list[object]:
    with direct(path) as db:
        layout = db.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()
        return [db.pragma("user_version"), layout, db.execute("SELECT * FROM documents").fetchall()]


async def test_a_new_base_has_the_layout_of_a_migrated_one(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    async with opened(new), opened(old):
        pass
    assert dump(new)[:2] == dump(old)[:2]


async def test_an_old_vector_that_is_damaged_is_left_out(old: Path) -> None:
    """Vectors of a length other than the embedder's would be misread."""
    with direct(old) as db:
        db.execute("UPDATE vectors SET vector = x'0000' WHERE chunk_id = 11")
    async with opened(old) as base:
        assert await base.store.lost_vectors() == 1
        assert (await base.find("revalued", "vector", vector=axis(0))).lost == 1


@pytest.mark.parametrize("then", [lambda: None, lambda: 1 / 0], ids=["ends", "fails"])
def test_a_transaction_is_closed_however_it_ends(tmp_path: Path, then: Callable[[], object]) -> None:
    with direct(tmp_path / "kb.db") as db:
        with contextlib.suppress(ZeroDivisionError), transaction(db):
            then()
        assert not db.in_transaction


async def test_jobs_that_waited_in_an_earlier_layout_keep_their_order(old: Path) -> None:
    """Short notes have their own lane; new jobs queue after them."""
    with direct(old) as db:
        migrate(db, old, MIGRATIONS[:4])
        db.executemany(
            "INSERT INTO jobs (id, status, kind, title, tags, metadata, dedup_scope, sha256, size_bytes, "
            "doc_type, step, created_at) "
            "VALUES (?1, 'queued', ?2, ?1, '[]', '{}', '', ?1, ?3, 'note', 'queued', ?4)",
            [
                ("a", "file", 1, OLD_TIME),
                ("b", "note", 1, OLD_TIME),
                ("c", "note", 10_000, OLD_TIME),
                ("d", "file", 1, OLD_TIME),
            ],
        )
    async with opened(old) as base:
        await base.accept(new_file("e", title="e"))
        taken = [
            await base.store.write(jobs.take, "L", lanes) for lanes in [("short",)] * 2 + [("long",)] * 4
        ]
    assert [leased and leased.job.title for leased in taken] == ["b", None, "a", "c", "d", "e"]


async def test_a_copy_of_the_earlier_layout_is_kept(old: Path) -> None:
    """The complete old base replaces an earlier copy; a base of the current layout gets no copy."""
    stale = old.with_name(f"{old.name}.layout-0")
    stale.touch()
    await visit(old)
    kept = old.with_name(f"{old.name}.layout-1")
    assert {path.name for path in old.parent.glob("*.layout-*")} == {kept.name}
    assert kept.stat().st_mode & 0o777 == 0o600
    with direct(kept) as db:
        assert db.pragma("user_version") == 1
        assert [text for (text,) in db.execute("SELECT text FROM chunks ORDER BY id")] == TEXTS
        assert db.pragma("integrity_check") == "ok"
    before = kept.stat()
    await visit(old)
    assert kept.stat() == before
    again = old.with_name("again.db")
    kept.rename(again)
    async with opened(again) as base:
        assert (await all_documents(base)).total == 3


async def test_the_copy_is_of_the_base_before_this_migration(old: Path) -> None:
    """A copy of this layout may be there from an upgrade that was undone."""
    kept = old.with_name(f"{old.name}.layout-1")
    shutil.copy(old, kept)
    with direct(old) as db:
        db.execute("UPDATE documents SET title = 'A later title' WHERE id = 3")
    await visit(old)
    with direct(kept) as db:
        assert db.execute("SELECT title FROM documents WHERE id = 3").get == "A later title"


@pytest.mark.parametrize("done", [1, 9, 15])
async def test_a_migration_that_is_interrupted_leaves_the_earlier_layout_and_its_copy(
    old: Path, done: int
) -> None:
    """Layouts in between belong to no released engine, to which a base could be brought back."""

    def interrupt(_: apsw.Connection) -> None:
        raise InterruptedError

    with direct(old) as db:
        with pytest.raises(InterruptedError):
            migrate(db, old, (*MIGRATIONS[: done + 1], interrupt))
        assert db.pragma("user_version") == 1
    await visit(old)
    assert {path.name for path in old.parent.glob("*.layout-*")} == {f"{old.name}.layout-1"}
    with direct(old) as db:
        assert db.pragma("user_version") == len(MIGRATIONS)


async def test_a_copy_that_was_broken_off_is_taken_again(old: Path) -> None:
    new = old.with_name(f"{old.name}.layout-1.new")
    new.write_bytes(b"half of it")
    await visit(old)
    assert not new.exists()
    assert old.with_name(f"{old.name}.layout-1").exists()


async def test_without_room_for_a_copy_the_base_is_migrated_all_the_same(
    old: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full:
        free = 0

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Full)
    await visit(old)
    assert columns(old) >= {"updated_at"}
    assert not old.with_name(f"{old.name}.layout-1").exists()
    assert "no room for a copy" in caplog.text
