"""From the candidates of an index to the results of a search: ranked, and read from the store."""

from __future__ import annotations

from kb_contracts.api import models as m
from kb_engine.index.port import Candidates
from kb_engine.index.ranking import is_weak, rank
from kb_engine.store.port import Found, Query
from kb_engine.store.repository.transaction import Read
from kb_engine.store.rows import CHUNK_COLUMNS, SUMMARY_COLUMNS, chunk, summary


async def found(read: Read, query: Query, candidates: Candidates) -> Found:
    """The results of a query, best first, ties by chunk id.

    A candidate whose chunk is gone is left out: an index of its own may not know yet.
    """
    ranked = rank(candidates.best, query.scoring)
    weak = is_weak(ranked, query.scoring)
    if not ranked:
        return Found(results=[], total=candidates.total, weak=weak, exact=candidates.exact)
    those, values = read.dialect.among([each.chunk_id for each in ranked])
    rows = await read.rows(
        f"SELECT c.document_id, {CHUNK_COLUMNS} FROM chunks c WHERE c.id {those}",  # noqa: S608
        values,
    )
    chunks = {row[1]: (row[0], chunk(row[1:])) for row in rows}
    those, values = read.dialect.among(list({document_id for document_id, _ in chunks.values()}))
    rows = await read.rows(
        f"SELECT {SUMMARY_COLUMNS}, {read.dialect.tags} FROM documents d WHERE d.id {those}",  # noqa: S608
        values,
    )
    summaries = {row[0]: summary(row, read.dialect.read_list) for row in rows}
    results = []
    for each in ranked:
        if each.chunk_id not in chunks:
            continue
        document_id, passage = chunks[each.chunk_id]
        document, tags = summaries[document_id]
        result = m.SearchResult(chunk=passage, score=each.score, document=document, tags=tags)
        if query.neighbors:
            place = passage.index
            around = await read.rows(
                f"SELECT {CHUNK_COLUMNS} FROM chunks c "  # noqa: S608
                "WHERE c.document_id = ? AND c.position BETWEEN ? AND ? ORDER BY c.position",
                (document_id, place - query.neighbors, place + query.neighbors),
            )
            beside = [chunk(row) for row in around]
            result.before = [other for other in beside if other.index < place]
            result.after = [other for other in beside if other.index > place]
        if query.explain:
            result.explain = each.explanation
        results.append(result)
    return Found(results=results, total=candidates.total, weak=weak, exact=candidates.exact)
