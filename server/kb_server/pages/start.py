"""The start page: the latest documents and notes, the jobs, the size of the base, and its health."""

from __future__ import annotations

import asyncio

from aiohttp import web

from kb_contracts.api.operations import (
    GET_STATUS,
    LIST_DOCUMENTS,
    LIST_JOBS,
    DocumentsQuery,
    JobsQuery,
)
from kb_server.pages.visit import Visit, sizes

_DOCUMENTS, _NOTES, _JOBS, _ROWS = 8, 6, 4, 8


async def start(visit: Visit) -> web.Response:
    """Show the start page, from one round of concurrent calls within the access scope of the visitor."""
    call = visit.engine.call
    state, collections, newest, notes, running, failed = await asyncio.gather(
        call(GET_STATUS),
        visit.collections(),
        call(LIST_DOCUMENTS, query=DocumentsQuery(sort_by="updated_at", limit=_DOCUMENTS)),
        call(LIST_DOCUMENTS, query=DocumentsQuery(doc_type="note", limit=_NOTES)),
        call(LIST_JOBS, query=JobsQuery(status="running", limit=_JOBS)),
        call(LIST_JOBS, query=JobsQuery(status="failed", limit=_JOBS)),
    )
    kinds = state.documents.by_type
    return visit.show(
        "start",
        given=visit.query,
        state=state,
        collections=collections,
        largest=sizes(sorted(collections, key=lambda each: -each.documents)[:_ROWS]),
        kinds=sorted(((name, kinds[name]) for name in kinds if kinds[name]), key=lambda each: -each[1]),
        newest=newest,
        notes=notes.documents if len(kinds) > 1 else [],
        jobs=[*running.jobs, *(failed.jobs if state.failures else ())],
    )
