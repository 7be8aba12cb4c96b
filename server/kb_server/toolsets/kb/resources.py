"""Documents as resources: `kb://documents/{id}{?from,to}`, and `kb://sources/{collection}/{path}`.

A path is percent-encoded, as the template requires of clients; unencoded characters are accepted too.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_server.collection_tags import tag_of
from kb_server.cursors import next_cursor, offset_of
from kb_server.engine_client.errors import Refused
from kb_server.engine_client.port import read_document
from kb_server.offers import Completer, Completion, Resource, ResourceTemplate, ResourceText
from kb_server.services import Services
from kb_server.tool import ToolError

TEMPLATE = "kb://documents/{id}{?from,to}"
SOURCE_TEMPLATE = "kb://sources/{collection}/{path}"
JOB_TEMPLATE = "kb://jobs/{id}"
MOST_CHARS = 200_000
"""Maximum number of characters of a document that are read at once; the answer names the remainder."""
_PAGE = 100
_CHUNKS = 500
_SOURCES = "kb://sources/"
_LONGEST_PATH = 1_000
_COMPLETED = {TEMPLATE: ("id",), SOURCE_TEMPLATE: ("collection", "path")}
_KEY = re.compile(get_args(ops.DOCUMENT_KEY)[1].pattern)
_PARTS = ("from", "to")
_AS_WRITTEN: frozenset[str] = frozenset(["text", "data"])
_BREAK = "\n\n"


class DocumentResources:
    """The documents of the base, the newest first; an id is the document's number or its uid."""

    templates: tuple[ResourceTemplate, ...] = (
        ResourceTemplate(
            TEMPLATE,
            "document",
            "A document",
            "The text of a document by its number or uid; `from` and `to` are characters of it.",
        ),
        ResourceTemplate(
            SOURCE_TEMPLATE,
            "source",
            "A document by its source",
            "The text of a document in a collection, by its path or URL (`source_path`).",
        ),
    )

    def __init__(self, services: Services, completer: Completer) -> None:
        self._services = services
        self._completer = completer

    async def page(self, cursor: str | None) -> tuple[Sequence[Resource], str | None]:
        """Return one page; a document that is added meanwhile shifts later entries."""
        offset = offset_of(cursor)
        query = ops.DocumentsQuery(sort_by="updated_at", offset=offset, limit=_PAGE)
        listed = await self._services.engine.call(ops.LIST_DOCUMENTS, query=query)
        following = next_cursor(offset, len(listed.documents), listed.total)
        return [_resource(each) for each in listed.documents], following

    async def read(self, uri: str) -> ResourceText:
        """Read a document, at most `MOST_CHARS` characters."""
        key, start, end = await self._place(uri)
        last = start + MOST_CHARS if end is None else min(end, start + MOST_CHARS)
        parts: list[str] = []
        place, offset = start, 0
        try:
            while True:
                query = ops.DocumentQuery(chunk_offset=offset, chunk_limit=_CHUNKS)
                document = await read_document(self._services.engine, key, query)
                for chunk in document.chunks:
                    if chunk.start >= last:
                        break
                    if chunk.end <= place:
                        continue
                    if parts and chunk.start > place:
                        parts.append(_BREAK)  # the gap between two passages is white space
                    parts.append(chunk.text[max(0, place - chunk.start) : last - chunk.start])
                    place = min(chunk.end, last)
                offset += len(document.chunks)
                if not document.chunks or document.chunks[-1].end >= last or offset >= document.chunk_count:
                    break
        except Refused as refused:
            if refused.reason != "document_not_found":
                raise
            raise not_found(uri) from None
        more = bool(document.chunks) and (document.chunks[-1].end > last or offset < document.chunk_count)
        cut = more and last != end
        following = f"kb://documents/{key}?from={last}" + (f"&to={end}" if end is not None else "")
        return ResourceText(uri, _mime_type(document.doc_type), "".join(parts), following if cut else None)

    async def version(self, uri: str) -> Hashable | None:
        """Return the document's identity and its version, or None if it does not exist."""
        try:
            key, _, _ = await self._place(uri)
            document = await read_document(self._services.engine, key)
        except ToolError:
            return None
        except Refused as refused:
            if refused.reason != "document_not_found":
                raise
            return None
        return document.uid, document.version

    async def complete(
        self, template: str, argument: str, value: str, given: Mapping[str, str]
    ) -> Completion:
        """Complete an argument of a template."""
        if argument not in _COMPLETED.get(template, ()):
            return Completion()
        return await self._completer.complete(argument, value, given)

    async def _place(self, uri: str) -> tuple[str, int, int | None]:
        return (await self._key_of_source(uri), 0, None) if uri.startswith(_SOURCES) else _place(uri)

    async def _key_of_source(self, uri: str) -> str:
        """Return the key of the document that came from a source."""
        collection, _, path = uri.removeprefix(_SOURCES).partition("/")
        try:
            source_path, tag = unquote(path, errors="strict"), tag_of(unquote(collection))
        except (ToolError, ValueError):
            raise not_found(uri) from None
        if not 1 <= len(source_path) <= _LONGEST_PATH:
            raise not_found(uri)
        listed = await self._services.engine.call(
            ops.LIST_DOCUMENTS, query=ops.DocumentsQuery(source_path=source_path, tag=tag)
        )
        if not listed.documents:
            raise not_found(uri)
        return str(listed.documents[0].id)


def _resource(document: m.Document) -> Resource:
    return Resource(
        uri=uri_of(document.id),
        name=document.source_path or document.filename or f"document {document.id}",
        title=document.title,
        mime_type=_mime_type(document.doc_type),
        size=document.size_bytes,
        annotations={"lastModified": document.updated_at},
    )


def uri_of(document_id: int) -> str:
    return f"kb://documents/{document_id}"


def _mime_type(doc_type: str) -> str:
    """Return the media type of a document's text, which readers write as Markdown."""
    return "text/plain" if doc_type in _AS_WRITTEN else "text/markdown"


def _place(uri: str) -> tuple[str, int, int | None]:
    """Return the document's key, the first character, and the last one.
    Raises ToolError: it does not match the template.
    """
    try:
        parts = urlsplit(uri)
        given = parse_qsl(parts.query, strict_parsing=True) if parts.query else []
        bounds = {name: int(text) for name, text in given}
    except ValueError:
        raise not_found(uri) from None
    key = parts.path.removeprefix("/")
    known = (parts.scheme, parts.netloc, parts.fragment) == ("kb", "documents", "")
    if not known or not _KEY.match(key) or len(given) != len(bounds) or not bounds.keys() <= set(_PARTS):
        raise not_found(uri)
    start, end = bounds.get("from", 0), bounds.get("to")
    if not 0 <= start <= m.MAX_INTEGER or (end is not None and not start <= end <= m.MAX_INTEGER):
        raise not_found(uri)
    return key, start, end


def not_found(uri: str) -> ToolError:
    words = (
        f"There is no resource {uri[:200]}. They are {TEMPLATE}, {SOURCE_TEMPLATE} and {JOB_TEMPLATE}, and "
        "resources/list has the newest documents."
    )
    return ToolError("resource_not_found", words, uri=uri[:2_000])
