"""Whole records, which `kb migrate` moves from one store to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_engine.store.repository import state, transfer
from kb_engine.store.repository.transaction import Write
from tests.support.stores import Base, direct

DERIVED = {"versions": {"id"}}
"""Columns with values of each base's own."""
TAKEN = {
    "documents", "note_texts", "document_sources", "document_tags", "chunks", "vectors", "feedback",
    "originals", *transfer.TABLES,
}  # fmt: skip
LEFT = {
    *("jobs", "job_texts", "spool_files", "spool_parts", "idempotency", "measures"),
    *("meta", "base", "layout", "counters", "pings"),
    *("postings", "outdated_words", "index_changes", "index_segments", "next_vectors", "next_embedder"),
    *("reserve", "word_orders"),
}
"""Finished work, a base's own state, and derived data."""


async def names(base: Base, sqlite: str, postgres: str) -> set[str]:
    if isinstance(base.place, Path):
        with direct(base.place) as db:
            return {name for (name,) in db.execute(sqlite)}
    return set((await base.place.value(f"SELECT string_agg({postgres}")).split())


async def test_no_column_is_forgotten(base: Base) -> None:
    """A column added by a later layout must be listed in `transfer`, or in `DERIVED`."""
    for table, known in {"documents": transfer.DOCUMENT, **transfer.TABLES}.items():
        found = await names(
            base,
            f"SELECT name FROM pragma_table_info('{table}')",
            "column_name, ' ') FROM information_schema.columns "
            f"WHERE table_schema = 'kb' AND table_name = '{table}'",
        )
        assert found == set(known) | DERIVED.get(table, set())


async def test_no_table_is_forgotten(base: Base) -> None:
    """A table added by a later layout must be transferred, or left out on purpose."""
    found = await names(
        base,
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'",
        "table_name, ' ') FROM information_schema.tables "
        "WHERE table_schema = 'kb' AND table_type = 'BASE TABLE'",
    )
    assert found - LEFT == TAKEN


async def test_numbers_go_on_behind_those_of_another_base(base: Base) -> None:
    generation = await base.store.read(state.generation)
    await base.store.write(transfer.continue_from, 40, generation + 100)
    assert (await base.note("text")).id == 41
    assert await base.store.read(state.generation) > generation + 100
    later = await base.store.read(state.generation)
    await base.store.write(transfer.continue_from, 7, 1)
    assert (await base.store.read(transfer.last_document), await base.store.read(state.generation)) == (
        41,
        later,
    )


async def test_a_record_is_put_in_as_it_was_and_has_the_same_digest(base: Base) -> None:
    note = await base.note("one ", "two", tags=("a", "b"), source_path="x.md", metadata={"n": 1})
    whole = await base.store.read(transfer.record, note.id)
    chunks = (await base.detail(note.id)).chunks
    await base.store.write(_remove, note.id)
    await base.store.write(transfer.put_records, [whole])
    again = await base.store.read(transfer.record, note.id)
    assert again.digest == whole.digest
    detail = await base.detail(note.id)
    assert (detail.uid, detail.tags, detail.source_paths) == (note.uid, ["a", "b"], ["x.md"])
    assert [each.uid for each in detail.chunks] == [each.uid for each in chunks]
    assert await base.titles("two") == ["A note"]


async def test_a_passage_without_a_vector_is_not_put_in(base: Base) -> None:
    note = await base.note("one")
    if isinstance(base.place, Path):
        with direct(base.place) as db:
            db.execute("DELETE FROM vectors")
    else:
        await base.place.execute("DELETE FROM vectors")
    whole = await base.store.read(transfer.record, note.id)
    await base.store.write(_remove, note.id)
    with pytest.raises(transfer.VectorLost, match=f"document {note.id}"):
        await base.store.write(transfer.put_records, [whole])
    assert await base.count("documents") == 0


async def _remove(write: Write, document_id: int) -> None:
    await write.hold_base()
    await write.remove_content(document_id)
    await write.rows("DELETE FROM documents WHERE id = ?", (document_id,))
    await write.touch_base(document_id)
