"""The SQL of a search: the filter on documents, and the results for an index's candidates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m
from kb_contracts.semantics.query import Wording
from kb_engine.index.port import Candidates, Selection
from kb_engine.index.score import Formula, above_floor, rank
from kb_engine.store.clock import stamp
from kb_engine.store.port import Found, Query
from kb_engine.store.repository.reach import Condition, of_document, starts_with
from kb_engine.store.repository.transaction import Read, Row, placeholders

CHUNK_COLUMNS = "c.id, c.uid, c.position, c.text, c.page, c.heading, c.first, c.beyond"
_CHUNK_FIELDS = ("id", "uid", "index", "text", "page", "heading", "start", "end")
_SUMMARY = m.DocumentSummary.__struct_fields__
"""Also the columns of `documents`: a new member of `DocumentSummary` has a column of its name."""
_RESULT_COLUMNS = f"{CHUNK_COLUMNS}, {', '.join(f'd.{name}' for name in _SUMMARY)}"


def condition(selection: Selection) -> Condition:
    """Return the filter on documents `d`, with a `?` for each value; empty without filters."""
    conditions = list(_conditions(selection))
    where = " AND ".join(sql for sql, _ in conditions)
    return where, [one for _, values in conditions for one in values]


def _conditions(selection: Selection) -> Iterator[Condition]:
    if selection.reach is not None:
        yield of_document(selection.reach, "d.id")
    tagged = "d.id IN (SELECT document_id FROM document_tags WHERE tag"
    for tag in selection.tags:
        yield f"{tagged} = ?)", [tag]
    if selection.tags_any:
        yield f"{tagged} IN ({placeholders(len(selection.tags_any))}))", selection.tags_any
    if selection.doc_type is not None:
        yield "d.doc_type = ?", [selection.doc_type]
    if selection.formats:
        yield f"d.format IN ({placeholders(len(selection.formats))})", selection.formats
    if selection.source_types:
        named = [one for one in selection.source_types if one is not None]
        either = [f"d.source_type IN ({placeholders(len(named))})"] if named else []
        if None in selection.source_types:
            either.append("d.source_type IS NULL")
        yield f"({' OR '.join(either)})", named
    if selection.source_path_prefix:
        sql, values = starts_with("source_path", selection.source_path_prefix)
        yield f"d.id IN (SELECT document_id FROM document_sources WHERE {sql})", values  # noqa: S608
    if selection.date_from is not None:
        yield f"d.{selection.date_field} >= ?", [stamp(selection.date_from)]
    if selection.date_to is not None:
        yield f"d.{selection.date_field} <= ?", [stamp(selection.date_to)]


LANGUAGES = """
WITH RECURSIVE each (language) AS (
  SELECT min(language) FROM documents WHERE language IS NOT NULL
  UNION ALL
  SELECT (SELECT min(d.language) FROM documents d WHERE d.language > e.language) FROM each e
  WHERE e.language IS NOT NULL)
SELECT language FROM each WHERE language IS NOT NULL
"""
"""Skip scan from one index entry to the next: one step per language, however many documents there are."""


async def languages(read: Read) -> list[str]:
    """Return the languages of the documents within the access scope, as far as they were recognised."""
    return [language for (language,) in await read.rows(*languages_within(read.reach))]


def languages_within(reach: Reach | None) -> Condition:
    """The statement for the languages of the documents within an access scope."""
    if reach is None:
        return LANGUAGES, ()
    where, values = of_document(reach, "d.id")
    within = f"EXISTS (SELECT 1 FROM documents d WHERE d.language = each.language AND {where})"  # noqa: S608
    return f"{LANGUAGES} AND {within}", values


async def passing(read: Read, wording: Wording, chunk_ids: Sequence[int]) -> set[int]:
    """Return the given chunks whose text passes the phrases and exclusions."""
    within, reached = read.within("d.id")
    sql = (
        "SELECT c.id, d.title, c.heading, c.text "  # noqa: S608
        f"FROM chunks c JOIN documents d ON d.id = c.document_id WHERE c.id {read.among}{within}"
    )
    rows = await read.rows(sql, (read.list_value(list(chunk_ids)), *reached))
    return {chunk_id for chunk_id, *texts in rows if wording.passes(*texts)}


async def found(read: Read, query: Query, candidates: Candidates) -> Found:
    """Return results by score, then chunk id; candidates of removed chunks are left out."""
    ranked = rank(candidates, query)
    above = above_floor(query, candidates, ranked)
    ranked = ranked[: query.top]
    known = await at(read, [each.chunk_id for each in ranked])
    formula = Formula(query.mode, query.scoring, candidates.total_weight)
    results = []
    for each in ranked:
        if (result := known.get(each.chunk_id)) is None:
            continue
        result.score = each.score
        if query.explain:
            result.explain = formula.explained(each.candidate)
        results.append(result)
    if (arrange := query.arrange) is not None:
        results = arrange(results) if read.on_thread else await asyncio.to_thread(arrange, results)
    lost = len(await there(read, candidates.lost, query.selection)) if candidates.lost else 0
    weak = above < 0 or not ranked
    return Found(results, candidates.total, weak, candidates.exact, candidates.total_exact, lost, above)


async def there(read: Read, chunk_ids: Sequence[int], selection: Selection | None = None) -> list[int]:
    """Return the given chunks that exist and match the selection."""
    sql, values = _chosen(read, chunk_ids, selection)
    return [chunk_id for (chunk_id,) in await read.rows(f"SELECT c.id {sql}", values)]


async def at(
    read: Read, chunk_ids: Sequence[int], selection: Selection | None = None
) -> dict[int, m.SearchResult]:
    """Return existing chunks as results without a score, by id.

    A cursor may name any chunk, and a separate index may not know yet that a document was moved. So chunks
    outside the access scope, or not matching the selection any more, are left out here.
    """
    if not chunk_ids:
        return {}
    sql, values = _chosen(read, chunk_ids, selection)
    rows = await read.rows(f"SELECT {_RESULT_COLUMNS}, {read.tags} {sql}", values)
    results = {}
    for row in rows:
        fields = dict(zip(_SUMMARY, row[len(_CHUNK_FIELDS) : -1], strict=True))
        fields["metadata"] = msgspec.json.decode(fields["metadata"])
        results[row[0]] = m.SearchResult(
            chunk=chunk(row[: len(_CHUNK_FIELDS)]),
            score=0.0,
            document=m.DocumentSummary(**fields),
            tags=read.read_list(row[-1]),
        )
    return results


def _chosen(read: Read, chunk_ids: Sequence[int], selection: Selection | None) -> Condition:
    """The end of a statement for the given chunks within the access scope that match the selection."""
    within = Selection(reach=read.reach) if selection is None else replace(selection, reach=read.reach)
    where, values = condition(within)
    # CROSS JOIN makes SQLite look up the chunks first, instead of scanning all chunks of the selection.
    sql = (
        "FROM chunks c CROSS JOIN documents d "
        f"WHERE d.id = c.document_id AND c.id {read.among} AND {where or 'true'}"
    )
    return sql, (read.list_value(list(chunk_ids)), *values)


async def add_neighbors(read: Read, results: Sequence[m.SearchResult], count: int) -> None:
    """Add up to `count` chunks before and after each result, or as many as it already has if more."""
    for result in results:
        index = result.chunk.index
        first, last = index - max(count, len(result.before)), index + max(count, len(result.after))
        around = await read.rows(
            f"SELECT {CHUNK_COLUMNS} FROM chunks c "  # noqa: S608
            "WHERE c.document_id = ? AND c.position BETWEEN ? AND ? ORDER BY c.position",
            (result.document.id, first, last),
        )
        beside = [chunk(row) for row in around]
        result.before = [other for other in beside if other.index < index]
        result.after = [other for other in beside if other.index > index]


def chunk(row: Row) -> m.Chunk:
    """Build a chunk from a row of `CHUNK_COLUMNS`."""
    fields = dict(zip(_CHUNK_FIELDS, row, strict=True))
    heading, _, header = (fields["heading"] or "").partition("\n")
    fields["heading"] = heading or None
    if header:
        fields["table_header"] = header
    return m.Chunk(**fields)
