"""Documents as resources, `kb://documents/{id}{?from,to}`, and what completes collections, tags and ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import get_args
from urllib.parse import parse_qsl, urlsplit

from kb_contracts.api import models as m
from kb_contracts.api.operations import (
    DOCUMENT_KEY,
    GET_DOCUMENT,
    LIST_DOCUMENTS,
    LIST_TAGS,
    DocumentQuery,
    DocumentsQuery,
    TagsQuery,
)
from kb_server.cursors import next_cursor, offset_of
from kb_server.engine_client.errors import Refused
from kb_server.offers import Completion, Resource, ResourceTemplate, ResourceText
from kb_server.services import Services
from kb_server.tool import ToolError

TEMPLATE = "kb://documents/{id}{?from,to}"
MOST_CHARS = 200_000
"""Of a document that is read at once; the answer names what follows."""
MOST_COMPLETIONS = 100

_PAGE = 100
_LONGEST_PREFIX = 200  # that the engine takes
_CHUNKS = 500
_COLLECTION = "collection:"
_KEY = re.compile(get_args(DOCUMENT_KEY)[1].pattern)
_PARTS = ("from", "to")
_AS_WRITTEN: frozenset[m.DocType] = frozenset(["text", "data"])
_BREAK = "\n\n"


class DocumentResources:
    """The documents of the base, the newest first; an id is the document's number or its uid."""

    templates = (
        ResourceTemplate(
            TEMPLATE,
            "document",
            "A document",
            "The text of a document by its number or uid; `from` and `to` are characters of it.",
        ),
    )

    def __init__(self, services: Services) -> None:
        self._services = services

    async def page(self, cursor: str | None) -> tuple[Sequence[Resource], str | None]:
        """As `Resources` has it; a document that is added meanwhile moves the others on."""
        offset = offset_of(cursor)
        query = DocumentsQuery(sort_by="updated_at", offset=offset, limit=_PAGE)
        listed = await self._services.engine.call(LIST_DOCUMENTS, query=query)
        following = next_cursor(offset, len(listed.documents), listed.total)
        return [_resource(each) for each in listed.documents], following

    async def read(self, uri: str) -> ResourceText:
        """As `Resources` has it: at the most `MOST_CHARS` characters of a document."""
        key, start, end = _place(uri)
        last = start + MOST_CHARS if end is None else min(end, start + MOST_CHARS)
        parts: list[str] = []
        place, offset = start, 0
        try:
            while True:
                query = DocumentQuery(chunk_offset=offset, chunk_limit=_CHUNKS)
                document = await self._services.engine.call(
                    GET_DOCUMENT, path={"document_id": key}, query=query
                )
                for chunk in document.chunks:
                    if chunk.start >= last:
                        break
                    if chunk.end <= place:
                        continue
                    if parts and chunk.start > place:
                        parts.append(_BREAK)  # what was left out between two passages is white space
                    parts.append(chunk.text[max(0, place - chunk.start) : last - chunk.start])
                    place = min(chunk.end, last)
                offset += len(document.chunks)
                if not document.chunks or document.chunks[-1].end >= last or offset >= document.chunk_count:
                    break
        except Refused as refused:
            if refused.reason != "document_not_found":
                raise
            raise _not_found(uri) from None
        more = bool(document.chunks) and (document.chunks[-1].end > last or offset < document.chunk_count)
        cut = more and last != end
        following = f"kb://documents/{key}?from={last}" + (f"&to={end}" if end is not None else "")
        return ResourceText(uri, _mime_type(document), "".join(parts), following if cut else None)

    async def complete(self, template: str, argument: str, value: str) -> Completion:
        """As `Resources` has it: the ids of the newest documents; where there are older ones, `more`."""
        if template != TEMPLATE or argument != "id":
            return Completion()
        listed = await self._services.engine.call(
            LIST_DOCUMENTS, query=DocumentsQuery(sort_by="updated_at", limit=10 * _PAGE)
        )
        ids = [str(each.id) for each in listed.documents]
        fitting = [each for each in ids if each.startswith(value)]
        more = len(fitting) > MOST_COMPLETIONS or listed.total > len(ids)
        return Completion(fitting[:MOST_COMPLETIONS], more)


class CollectionNames:
    """Completes the argument `collection` of prompts."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def complete(self, argument: str, value: str) -> Completion:
        """As `Completer` has it."""
        prefix = _COLLECTION + value
        if argument != "collection" or len(prefix) > _LONGEST_PREFIX:
            return Completion()
        query = TagsQuery(prefix=prefix, limit=MOST_COMPLETIONS)
        listed = await self._services.engine.call(LIST_TAGS, query=query)
        names = [each.tag.removeprefix(_COLLECTION) for each in listed.tags]
        return Completion(names, more=listed.total > len(names))


def _resource(document: m.Document) -> Resource:
    return Resource(
        uri=f"kb://documents/{document.id}",
        name=document.source_path or document.filename or f"document {document.id}",
        title=document.title,
        mime_type=_mime_type(document),
        size=document.size_bytes,
        changed_at=document.updated_at,
    )


def _mime_type(document: m.Document) -> str:
    """Of the text that is read, which readers write as Markdown."""
    return "text/plain" if document.doc_type in _AS_WRITTEN else "text/markdown"


def _place(uri: str) -> tuple[str, int, int | None]:
    """The document's key, from which character, and to which one.

    Raises:
        ToolError: it is no URI of the template.
    """
    try:
        parts = urlsplit(uri)
        given = parse_qsl(parts.query, strict_parsing=True) if parts.query else []
        bounds = {name: int(text) for name, text in given}
    except ValueError:
        raise _not_found(uri) from None
    key = parts.path.removeprefix("/")
    known = (parts.scheme, parts.netloc, parts.fragment) == ("kb", "documents", "")
    if not known or not _KEY.match(key) or len(given) != len(bounds) or not bounds.keys() <= set(_PARTS):
        raise _not_found(uri)
    start, end = bounds.get("from", 0), bounds.get("to")
    if not 0 <= start <= m.MAX_INTEGER or (end is not None and not start <= end <= m.MAX_INTEGER):
        raise _not_found(uri)
    return key, start, end


def _not_found(uri: str) -> ToolError:
    words = f"There is no resource {uri[:200]}. They are {TEMPLATE}, and resources/list has the newest."
    return ToolError("resource_not_found", words, uri=uri[:2_000])
