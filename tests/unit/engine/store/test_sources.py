"""Sources in the store: jobs of one source run in order, and a replacement is atomic."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.documents import text_digest
from kb_engine.store.repository import documents, jobs, sources, updates
from kb_engine.store.sqlite.schema import MIGRATIONS, migrate
from tests.support.contract_objects import job_error
from tests.support.stores import Base, all_documents, died, direct, key, new_file, new_note, opened, prepared

PATH = "/notes/a.md"


async def taken(base: Base, lease: str) -> str | None:
    leased = await base.store.write(jobs.take, lease)
    return leased and leased.job.title


async def test_jobs_of_a_source_follow_one_another(base: Base) -> None:
    """Jobs of another path or collection do not wait, and a cancelled job holds up no other."""
    first = new_note("1", title="first", source_path=PATH)
    for job in (
        first,
        new_note("2", title="second", source_path=PATH),
        new_note("3", title="elsewhere", source_path=PATH, tags=["collection:b"]),
        new_note("4", title="other", source_path="/b.md"),
    ):
        await base.accept(job)
    assert [await taken(base, f"L{number}") for number in range(4)] == ["first", "elsewhere", "other", None]
    await base.store.once(None, jobs.cancel, first.id)
    assert await taken(base, "L") == "second"


async def test_a_job_that_is_tried_again_waits_for_a_later_one_that_runs(base: Base) -> None:
    first = await base.lease(new_note("1", source_path=PATH))
    error = job_error()
    await base.store.write(jobs.fail, first.lease, first.job.id, error)
    second = await base.lease(new_note("2", source_path=PATH))
    await base.store.write(jobs.retry, first.job.id)
    assert await base.store.write(jobs.take, "L") is None
    await base.commit(second, prepared("2"))
    again = await base.store.write(jobs.take, "L")
    assert again is not None
    assert again.job.id == first.job.id


async def test_a_replacement_has_not_been_where_the_engine_died(base: Base, tmp_path: Path) -> None:
    """Searches find the old text until the commit, and then only the new one."""
    standing = await base.note("granite", source_path=PATH)
    leased = await base.lease(new_note("basalt", source_path=PATH))
    assert await base.titles("granite") == [standing.title]
    place = await died(base, tmp_path / "left")
    if isinstance(base.place, Path):
        async with opened(place) as left:
            assert [one.version for one in (await all_documents(left)).documents] == [1]
            assert (len(await left.titles("granite")), await left.titles("basalt")) == (1, [])
        assert await base.commit(leased, prepared("basalt"))
        async with opened(await died(base, tmp_path / "after")) as left:
            assert [one.version for one in (await all_documents(left)).documents] == [2]
            assert (await left.titles("granite"), len(await left.titles("basalt"))) == ([], 1)


async def test_the_work_on_a_duplicate_is_spared_though_its_source_changes(base: Base) -> None:
    goes = await base.note("granite", source_path=PATH)
    stays = await base.note("basalt", source_path="/b.md")
    leased = await base.lease(new_note("basalt", source_path=PATH))
    job = await base.store.write(documents.commit_duplicate, leased)
    assert job is not None
    assert (job.document_id, job.outcome, job.deduplicated) == (stays.id, "replaced", True)
    assert [one.id for one in (await all_documents(base)).documents] == [stays.id]
    assert goes.id != stays.id


async def test_a_source_is_replaced_and_not_spared_where_its_text_is_new(base: Base) -> None:
    standing = await base.note("granite", source_path=PATH)
    leased = await base.lease(new_note("basalt", source_path=PATH))
    assert await base.store.write(documents.commit_duplicate, leased) is None
    assert (await base.detail(standing.id)).version == 1


async def test_the_new_title_of_a_note_that_its_source_replaced_meanwhile_is_refused(base: Base) -> None:
    """Its chunks were made from the old text."""
    note = await base.note("granite", source_path=PATH)
    patch = m.NotePatch(title="Stone")
    await base.store.write(updates.accept, note.id, patch, key("k"))
    leased = await base.take("L")
    replaced = await base.lease(new_note("basalt", source_path=PATH))
    await base.commit(replaced, prepared("basalt"))
    made = dataclasses.replace(prepared("granite", title="Stone"), of_note=text_digest("granite")[0])
    with pytest.raises(EngineError) as refused:
        await base.commit(leased, made)
    assert (refused.value.code, await base.titles("granite")) == ("version_conflict", [])


async def test_a_file_replaces_a_note_and_a_note_a_file(base: Base) -> None:
    note = await base.note("granite", source_path=PATH)
    file = await base.file("basalt", source_path=PATH)
    assert (file.id, file.doc_type, file.version) == (note.id, new_file("x").doc_type, 2)
    with pytest.raises(EngineError, match="came from a file"):
        await base.store.read(documents.note, note.id)
    await base.note("slate", source_path=PATH)
    assert (await base.store.read(documents.note, note.id))[1] == "slate"


async def test_planning_a_replacement_changes_nothing(base: Base) -> None:
    standing = await base.note("granite", source_path=PATH)
    planned = await base.store.read(sources.plan_of, new_note("basalt", source_path=PATH))
    assert (planned.outcome, planned.target, planned.swaps) == ("replaced", standing.id, True)
    assert (await base.detail(standing.id)).version == 1


async def test_a_base_of_the_layout_before_knows_its_sources(tmp_path: Path) -> None:
    """A moved document is in the scope of its collection; one without a source has none."""
    path = tmp_path / "kb.db"
    with direct(path) as db:
        migrate(db, path, MIGRATIONS[:11])
        db.executemany(
            "INSERT INTO documents (id, uid, kind, title, doc_type, size_bytes, sha256, created_at, "
            "updated_at, dedup_scope, source_path) "
            "VALUES (?1, ?1, 'note', 'x', 'note', 1, ?3, '2024-01-01T00:00:00.000000Z', "
            "'2024-01-01T00:00:00.000000Z', 'collection:a', ?2)",
            [(1, PATH, "h1"), (2, None, "h2")],
        )
        db.execute("INSERT INTO document_sources (document_id, source_path) VALUES (1, ?)", (PATH,))
        db.execute("INSERT INTO document_tags (document_id, tag) VALUES (1, 'collection:b')")
        db.execute("INSERT INTO document_tags (document_id, tag) VALUES (2, 'collection:a')")
        migrate(db, path)
        found = db.execute("SELECT id, dedup_scope, unsourced FROM documents ORDER BY id").fetchall()
    assert found == [(1, "collection:b", 0), (2, "collection:a", 1)]


async def test_a_source_path_of_any_script_is_as_long_as_it_may_be(base: Base) -> None:
    path = "".join(chr(0x4E00 + 7919 * number % 20_000) for number in range(1_000))
    for text in ("granite", "basalt"):
        await base.note(text, source_path=path)
    (standing,) = (await all_documents(base)).documents
    assert standing.source_paths == [path]
