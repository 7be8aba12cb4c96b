"""Pages of earlier versions of documents, and of removed documents."""

from __future__ import annotations

from aiohttp import web

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_server.note_edits import difference
from kb_server.pages.document_pages import read_note
from kb_server.pages.visit import Visit, fit, go, rendered

_VERSIONS = 50
_TEXT_CHARS = 100_000


async def listing(visit: Visit) -> web.Response:
    path = visit.request.match_info
    query = fit(ops.PageQuery, offset=visit.query.get("offset"), limit=_VERSIONS)
    listed = await visit.engine.call(ops.LIST_VERSIONS, path=path, query=query)
    return _listing(visit, listed, of=path["document_id"])


async def trash(visit: Visit) -> web.Response:
    query = fit(ops.PageQuery, offset=visit.query.get("offset"), limit=_VERSIONS)
    return _listing(visit, await visit.engine.call(ops.LIST_TRASH, query=query), of="")


def _listing(visit: Visit, listed: m.PastVersionList, of: str) -> web.Response:
    around = visit.around(listed.offset, len(listed.versions), listed.total, _VERSIONS)
    return visit.show("versions", listed=listed, of=of, around=around)


async def version(visit: Visit) -> web.Response:
    query = fit(ops.VersionQuery, text_offset=visit.query.get("offset"), text_limit=_TEXT_CHARS)
    past = await visit.engine.call(ops.GET_VERSION, path=visit.request.match_info, query=query)
    around = visit.around(past.text_offset, len(past.text), past.text_length, _TEXT_CHARS)
    html = await rendered("text_html", past.text, past.doc_type)
    difference = await _difference(visit, past)
    return visit.show("version", past=past, html=html, difference=difference, around=around)


async def _difference(visit: Visit, past: m.PastVersionDetail) -> str:
    """Return the difference to the current note; empty if it is not a note, or its text is incomplete."""
    if past.removed or past.doc_type != "note" or len(past.text) < past.text_length:
        return ""
    _, text = await read_note(visit, str(past.document_id))
    return difference(past.text, text)


async def restore(visit: Visit) -> web.Response:
    document = await visit.engine.call(ops.RESTORE_VERSION, path=visit.request.match_info)
    return go(f"/documents/{document.id}?done=restored")
