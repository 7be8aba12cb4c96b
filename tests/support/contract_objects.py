"""Objects of the engine's contract, each with defaults for the members that a test does not name.

A new required member of a model is added here, once. A builder has a parameter for each
member that some test sets, so that mypy reads the calls; the first test that sets another member adds one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from kb_contracts.api import models as m
from kb_contracts.semantics.ranking import DEFAULT_WEIGHTS

MOMENT = "2026-01-02T03:04:05Z"
UID = "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"


def job_error(code: str = "file_corrupt", message: str = "It is damaged.") -> m.JobError:
    return m.JobError(code=code, message=message)


def job_with(
    *,
    id: str = UID,
    status: m.JobStatus = "queued",
    kind: m.JobKind = "note",
    title: str = "A note",
    filename: str | None = None,
    tags: Sequence[str] = (),
    step: str = "waiting",
    attempts: int = 0,
    error: m.JobError | None = None,
    started_at: str | None = None,
    finished_at: str | None = None,
) -> m.Job:
    """A job, by default a waiting one."""
    return m.Job(
        id=id,
        status=status,
        kind=kind,
        title=title,
        filename=filename,
        tags=list(tags),
        step=step,
        progress=0,
        completed_steps=0,
        total_steps=1,
        attempts=attempts,
        document_id=None,
        document_uid=None,
        deduplicated=False,
        error=error,
        created_at=MOMENT,
        started_at=started_at,
        finished_at=finished_at,
    )


def document_with(
    *, id: int = 1, title: str = "A note", source_path: str | None = None, size_bytes: int = 1
) -> m.Document:
    return m.Document(
        id=id,
        uid=UID,
        title=title,
        doc_type="note",
        format=None,
        filename=None,
        source_path=source_path,
        source_paths=[],
        size_bytes=size_bytes,
        sha256="0" * 64,
        tags=[],
        metadata={},
        status="searchable",
        status_reason=None,
        extraction_method="none",
        pages=None,
        chunk_count=0,
        version=1,
        created_at=MOMENT,
        updated_at=MOMENT,
    )


def detail_of(document: m.Document, chunks: Sequence[m.Chunk] = ()) -> m.DocumentDetail:
    members = msgspec.structs.asdict(document)
    return m.DocumentDetail(**members, chunks=list(chunks), chunk_offset=0, chunk_limit=200)


def chunk_with(
    *,
    id: int | None = None,
    index: int = 0,
    text: str = "some text",
    page: int | None = None,
    heading: str | None = None,
    start: int = 0,
    end: int | None = None,
    table_header: str | UnsetType = UNSET,
) -> m.Chunk:
    """A chunk; by default `id` follows from `index`, and `end` from the length of the text."""
    number = index + 1 if id is None else id
    return m.Chunk(
        id=number,
        uid=f"chunk {number}",
        index=index,
        text=text,
        page=page,
        heading=heading,
        start=start,
        end=start + len(text) if end is None else end,
        table_header=table_header,
    )


def summary_with(**members: Any) -> m.DocumentSummary:
    """Return the summary of a note, with these members of a document."""
    number = members.get("id", 1)
    return summary_of(msgspec.structs.replace(document_with(), **{"uid": f"document {number}", **members}))


def summary_of(document: m.Document) -> m.DocumentSummary:
    names = m.DocumentSummary.__struct_fields__
    return m.DocumentSummary(**{name: getattr(document, name) for name in names})


def result_with(
    chunk: m.Chunk | None = None,
    document: m.DocumentSummary | None = None,
    *,
    score: float = 0.5,
    tags: Sequence[str] = (),
    before: Sequence[m.Chunk] = (),
    after: Sequence[m.Chunk] = (),
) -> m.SearchResult:
    return m.SearchResult(
        chunk=chunk or chunk_with(),
        score=score,
        document=document or summary_with(),
        tags=list(tags),
        before=list(before),
        after=list(after),
    )


def result_of(
    document: m.Document, chunk: m.Chunk | None = None, *, tags: Sequence[str] | None = None
) -> m.SearchResult:
    """A result that shows a document, by default with the document's tags."""
    return result_with(chunk, summary_of(document), score=0.75, tags=document.tags if tags is None else tags)


def response_with(
    results: Sequence[m.SearchResult] = (),
    *,
    total: int | None = None,
    mode: m.Mode = "hybrid",
    weak: bool = False,
    total_exact: bool | UnsetType = UNSET,
    reranked: bool | UnsetType = UNSET,
    rerank_failure: str | UnsetType = UNSET,
    incomplete: str | UnsetType = UNSET,
) -> m.SearchResponse:
    """A response to a search; by default `total` is the number of results."""
    return m.SearchResponse(
        results=list(results),
        total=len(results) if total is None else total,
        mode=mode,
        took_ms=0.5,
        weak=weak,
        total_exact=total_exact,
        reranked=reranked,
        rerank_failure=rerank_failure,
        incomplete=incomplete,
    )


def ranking_parts_with(
    *, semantic: float, recency: float, reputation: float, feedback: float
) -> m.RankingParts:
    """The parts of a score with the default weights, for a query of keywords."""
    return m.RankingParts(
        semantic=semantic,
        recency=recency,
        reputation=reputation,
        feedback=feedback,
        weights=DEFAULT_WEIGHTS,
        kind="keywords",
    )


def explanation_with(*, cosine: float = 0.5) -> m.Explanation:
    """An explanation of a score by meaning alone."""
    return m.Explanation(cosine=cosine, bm25=None, weight=0.5, saturation=2.0)
