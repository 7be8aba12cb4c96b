"""Pages of documents: search, list, view, edit, tag, remove; and their collections."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec
from aiohttp import hdrs, web

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.semantics.search import good_matches
from kb_http.downloads import SAFE_HEADERS, file_response
from kb_server import collection_moves
from kb_server.collection_tags import PREFIX, tag_of, tags_for_search
from kb_server.engine_client.errors import EngineFault, Refused
from kb_server.engine_client.port import read_document
from kb_server.pages.start import start
from kb_server.pages.visit import (
    HEADERS,
    Visit,
    collection_of,
    filled,
    fit,
    go,
    listed_in,
    rendered,
    sizes,
    tags_of,
)
from kb_server.tool import ToolError

log = logging.getLogger(__name__)

_RESULTS, _DOCUMENTS, _PASSAGES = 10, 50, 100
_PICTURES = ("jpg", "png")
_NEAR, _FACETS, _TAGS = 6, 20, 100
_SYNTAX = re.compile(r'["“”„«»]|(?<!\S)-')


async def search(visit: Visit) -> web.Response:
    query = visit.query.get("q", "").strip()
    if not query:
        return await start(visit)
    request = fit(
        m.SearchRequest,
        query=query,
        top=_RESULTS,
        tags=_tags(visit),
        doc_type=visit.query.get("type"),
        mode=visit.query.get("mode"),
        cursor=visit.query.get("cursor"),
        filters=filled(source_path_prefix=visit.query.get("path")),
        collapse=True,
        pages=True,
    )
    collections, answer = await asyncio.gather(
        visit.collections(), visit.engine.call(ops.SEARCH, body=request)
    )
    excerpts = await rendered("excerpts", query, answer.results)
    found = list(zip(answer.results, excerpts, strict=True))
    well = good_matches(answer.results)
    following = visit.again(cursor=answer.next_cursor) if answer.next_cursor else ""
    return visit.show(
        "search",
        query=query,
        given=visit.query,
        collections=collections,
        answer=answer,
        facets=_facets(visit, [result.tags for result in answer.results], request.tags),
        near=found[:well],
        far=found[well:],
        around={"previous": "", "following": following},
    )


async def listing(visit: Visit) -> web.Response:
    if "tags" in visit.query:  # the name that `kb get` and the tools have
        return go(visit.again(tag=visit.query["tags"], tags=""))
    tags = _tags(visit)
    query = fit(
        ops.DocumentsQuery,
        tag=",".join(tags),
        doc_type=visit.query.get("type"),
        source_path_prefix=visit.query.get("path"),
        sort_by=visit.query.get("sort") or "updated_at",
        sort_order="asc" if visit.query.get("sort") in ("title", "filename") else "desc",
        offset=visit.query.get("offset"),
        limit=_DOCUMENTS,
    )
    listed, collections = await asyncio.gather(
        visit.engine.call(ops.LIST_DOCUMENTS, query=query), visit.collections()
    )
    return visit.show(
        "documents",
        given=visit.query,
        collections=collections,
        choices=visit.choices_of(collections),
        facets=_facets(visit, [each.tags for each in listed.documents], tags),
        listed=listed,
        around=visit.around(listed.offset, len(listed.documents), listed.total, _DOCUMENTS),
    )


async def document(visit: Visit) -> web.Response:
    place = fit(ops.DocumentQuery, chunk_offset=visit.query.get("offset"), chunk_limit=_PASSAGES)
    path = visit.request.match_info
    try:
        document = await visit.engine.call(ops.GET_DOCUMENT, path=path, query=place)
    except Refused as refused:
        if refused.reason != "document_not_found":
            raise
        listed = await visit.engine.call(ops.LIST_VERSIONS, path=path, query=ops.PageQuery(limit=1))
        if not (listed.versions and listed.versions[0].removed):
            raise
        return visit.show("removed", status=404, past=listed.versions[0])
    text, contents = await rendered("document_html", document, _passages(document.chunks))
    return visit.show(
        "document",
        document=document,
        text=text,
        contents=contents,
        figure=_figure(visit, document),
        again=visit.again,
        near=await _near(visit, document),
        collections=await visit.choices(),
        around=visit.around(document.chunk_offset, len(document.chunks), document.chunk_count, _PASSAGES),
    )


async def original(visit: Visit) -> web.Response:
    """Return a document's original file as a download, streamed from the engine."""
    engine = visit.engine
    document = await read_document(engine, visit.request.match_info["document_id"])
    async with engine.original(document) as content:
        response = await file_response(content)
        response.headers.update({**HEADERS, **SAFE_HEADERS, hdrs.CACHE_CONTROL: "no-store"})
        await response.prepare(visit.request)
        try:
            await response.write_eof()
        # too late for an error response: the client detects the truncated transfer
        except EngineFault as fault:
            log.warning("A download was interrupted", extra={"reason": fault.detail})
            if visit.request.transport is not None:
                visit.request.transport.abort()
    return response


async def picture(visit: Visit) -> web.Response:
    """Return a page of a document's original file as a picture; a browser asks before it uses its copy."""
    query = fit(ops.PictureQuery, page=visit.query.get("page"), chunk=visit.query.get("passage"))
    drawn = await visit.engine.call(ops.GET_PICTURE, path=visit.request.match_info, query=query)
    headers = {**HEADERS, hdrs.CACHE_CONTROL: "private, no-cache"}
    etag = hashlib.sha256(drawn.content).hexdigest()
    is_known = any(each.value in (etag, "*") for each in visit.request.if_none_match or ())
    response = (
        web.Response(status=304, headers=headers)
        if is_known
        else web.Response(body=drawn.content, content_type=drawn.media_type, headers=headers)
    )
    response.etag = etag
    return response


class _Figure(NamedTuple):
    """The picture on the page of a document, beside the passage with the index `passage`; None: above all.

    `number` is the number of the page in the file, None for the picture of an image; `around` has the
    addresses of the pages with the pictures before and after it.
    """

    address: str
    number: int | None
    around: dict[str, str]
    passage: int | None


def _figure(visit: Visit, document: m.DocumentDetail) -> _Figure | None:
    if document.original is not True:
        return None
    address, chunks = f"/documents/{document.id}/picture", document.chunks
    if document.format in _PICTURES:
        return _Figure(address, None, {}, chunks[0].index if chunks else None)
    wanted = fit(ops.PictureQuery, page=visit.query.get("page"), chunk=visit.query.get("passage"))
    hit = next((each for each in chunks if each.index == wanted.chunk), None)
    number = wanted.page or (hit.page if hit else None if chunks else 1)
    if document.format != "pdf" or number is None or number > (document.pages or number):
        return None
    on_page = [hit] if hit and hit.page == number else [each for each in chunks if each.page == number]
    around = {
        "previous": visit.again(page=number - 1) + "#picture" if number > 1 else "",
        "following": visit.again(page=number + 1) + "#picture" if number < (document.pages or 0) else "",
    }
    marked = {} if hit is None else {"passage": hit.index}
    beside = on_page[0].index if on_page else None
    return _Figure(f"{address}?{urlencode({'page': number, **marked})}", number, around, beside)


async def _near(visit: Visit, document: m.Document) -> list[m.SearchResult]:
    """Return the best search results for the document's title, without the document itself."""
    query = _SYNTAX.sub(" ", document.title)[: m.MAX_QUERY_CHARS].strip()
    if not query:
        return []
    request = m.SearchRequest(query=query, top=_NEAR, per_document=1, detail="locations")
    try:
        answer = await visit.engine.call(ops.SEARCH, body=request)
    except Refused:  # such as a title of punctuation alone
        return []
    near = {result.document.id: result for result in reversed(answer.results)}
    near.pop(document.id, None)
    return list(reversed(near.values()))


async def note(visit: Visit) -> web.Response:
    document, text = await read_note(visit, visit.request.match_info["document_id"])
    return visit.show("note", document=document, title=document.title, text=text)


async def save_note(visit: Visit) -> web.Response:
    document_id, form = visit.request.match_info["document_id"], visit.form
    title, text, version = form["title"], form.text("text"), form["version"]
    patch = fit(m.NotePatch, text=text, title=title, expected_version=version)
    waiting = ops.NoteQuery(wait=round(min(ops.UPDATE_WAIT_SECONDS, visit.engine.longest_wait), 3))
    try:
        answer = await visit.engine.call(
            ops.PATCH_NOTE, path=visit.request.match_info, query=waiting, body=patch
        )
    except Refused as refused:
        if refused.reason != "version_conflict":
            raise
        document, theirs = await read_note(visit, document_id)
        message = "The note was changed meanwhile. Your text and the current one are below. Save again to "
        message += "replace the current one."
        return visit.show(
            "note", status=409, document=document, title=title, text=text, theirs=theirs, message=message
        )
    if isinstance(answer, m.Job):
        return go("/jobs?done=update")
    return go(f"/documents/{answer.id}?done=saved")


async def read_note(visit: Visit, document_id: str) -> tuple[m.DocumentDetail, str]:
    query = ops.DocumentQuery(chunks=False, text=True)
    document = await read_document(visit.engine, document_id, query)
    if document.text is msgspec.UNSET:
        raise ToolError("not_a_note", "Only notes can be edited. Add the changed file again instead.")
    return document, document.text


async def save_tags(visit: Visit) -> web.Response:
    """Apply the differences between the form and its page to the tags: concurrent changes are kept."""
    engine, form = visit.engine, visit.form
    path = {"document_id": visit.request.match_info["document_id"]}
    document: m.Document = await read_document(engine, path["document_id"])
    wanted, before = tags_for_search(None, listed_in(form["tags"])), listed_in(form["tags_before"])
    collection = form["collection"] if form["collection"] != form["collection_before"] else ""
    if collection and collection != collection_of(document.tags):
        tag_of(collection)  # raises before any change
    present = tags_of(document.tags)
    if new := [tag for tag in wanted if tag not in before and tag not in present]:
        document = await engine.call(
            ops.ADD_TAGS, path=path, body=m.TagsRequest(tags=new), if_match=document.version
        )
    for tag in before:
        if tag not in wanted and tag in present:
            document = await engine.call(ops.REMOVE_TAG, path={**path, "tag": tag}, if_match=document.version)
    if collection and collection != collection_of(document.tags):
        document = await collection_moves.move(engine, document, collection, clock=visit.clock)
    return go(f"/documents/{document.id}?done=saved")


async def removal(visit: Visit) -> web.Response:
    document = await read_document(visit.engine, visit.request.match_info["document_id"])
    return visit.show("remove", document=document)


async def remove(visit: Visit) -> web.Response:
    purge = bool(visit.form["purge"])
    query = ops.DeleteQuery(purge=purge)
    await visit.engine.call(ops.DELETE_DOCUMENT, path=visit.request.match_info, query=query)
    return go(f"/documents?done={'purged' if purge else 'removed'}")


async def collections(visit: Visit) -> web.Response:
    collections, tags = await asyncio.gather(visit.collections(), visit.tags())
    return visit.show(
        "collections", collections=sizes(collections), tags=sizes(tags[:_TAGS]), tag_count=len(tags)
    )


def _facets(
    visit: Visit, listed: Sequence[Sequence[str]], given: Sequence[str]
) -> list[tuple[str, int, str]]:
    """Return the tags of some of the documents, but not of all, each with its count and its address."""
    counts = Counter(tag for tags in listed for tag in tags if tag not in given)
    return [
        (tag.removeprefix(PREFIX), count, visit.narrowed(tag))
        for tag, count in counts.most_common(_FACETS)
        if count < len(listed)
    ]


def _tags(visit: Visit) -> list[str]:
    """Return the tags that the address of a page requires."""
    tags = tags_for_search(None, listed_in(visit.query.get("tag", "")))
    if name := visit.query.get("collection"):
        try:  # other programs give collections names that no form accepts: their documents are shown as well
            tags.append(msgspec.convert(PREFIX + name, m.Tag))
        except msgspec.ValidationError:
            tags.append(tag_of(name))  # raises, with the characters of a name
    return tags


def _passages(chunks: Sequence[m.Chunk]) -> list[tuple[m.Chunk, str]]:
    """Return the passages as shown, each without its overlap with the one before."""
    passages, place = [], 0
    for chunk in chunks:
        passages.append((chunk, chunk.text[max(0, place - chunk.start) :]))
        place = max(place, chunk.end)
    return passages
