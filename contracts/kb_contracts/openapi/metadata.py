"""What the OpenAPI documents hold beside the operations: their heads, headers, conditions between members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kb_contracts.api import models, ragler
from kb_contracts.api.operations import IDEMPOTENCY_KEY, IF_MATCH, ApiSurface, ClearQuery

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class About:
    """What a document says of itself, and the name of its file."""

    filename: str
    title: str
    summary: str
    description: str


ABOUT: Mapping[ApiSurface, About] = {
    ApiSurface.ENGINE: About(
        "engine.openapi.yaml",
        "kb engine API",
        "Search, ingestion and documents of a knowledge base",
        """\
What every engine of kb answers. Times are RFC 3339 in UTC. Offsets and lengths of text count Unicode
code points; sizes of files are bytes. Requests refuse what they do not know; answers may gain members.
Every failure is a problem document (RFC 9457) with a stable `code`.""",
    ),
    ApiSurface.RAGLER: About(
        "ragler.openapi.yaml",
        "RAGler's operations of a kb engine",
        "Vector search over collections, at the root of the URL",
        f"""\
What an engine of kb answers to RAGler's clients, where it serves them. A collection is what carries the
tag `collection:<name>`; it has an id from then on, and a description once somebody has put one. Times are
RFC 3339 in UTC. Requests refuse what they do not know; answers may gain members. Every failure is a
problem document (RFC 9457) with a stable `code`.

Limits are kept for each `X-User-ID`, in fixed windows of {ragler.WINDOW_SECONDS} seconds:
{", ".join(f"{limit} calls of `{id_}`" for id_, limit in ragler.LIMITS.items())}.""",
    ),
}

ETAG: Json = {
    "description": "the document's version, for If-Match",
    "required": True,
    "schema": {"type": "string", "pattern": '^"[1-9][0-9]*"$'},
}
RETRY_AFTER: Json = {
    "description": "seconds to wait before the same request may succeed",
    "schema": {"type": "integer", "minimum": 1},
}


def _header(name: str, description: str, pattern: str, **bounds: int) -> Json:
    schema = {"type": "string", "pattern": pattern, **bounds}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


HEADERS: Mapping[str, Json] = {
    header["name"]: header
    for header in (
        _header(
            IDEMPOTENCY_KEY,
            "the same key with the same request gives the same answer and no second effect",
            "^[\\x20-\\x7e]+$",
            minLength=1,
            maxLength=255,
        ),
        _header(IF_MATCH, "the version that the document must have, as its ETag", '^"?[1-9][0-9]{0,17}"?$'),
        _header(
            ragler.USER_ID,
            "on whose behalf the call is made; limits are kept by it and jobs take turns by it, "
            "or by the key without it",
            ragler.CALLER_TEXT,
            minLength=1,
            maxLength=ragler.MAX_USER_CHARS,
        ),
        _header(
            ragler.USER_ROLE,
            f"the caller's role; `{ragler.SERVICE}` may read and no more",
            ragler.CALLER_TEXT,
            minLength=1,
            maxLength=ragler.MAX_ROLE_CHARS,
        ),
    )
}
"""The headers that operations look at beside the key, as parameters."""
_DATE = {
    "anyOf": [
        {"type": "string", "format": "date"},
        {"type": "string", "format": "date-time"},
        {"type": "null"},
    ]
}
_DATES = {"allOf": [{"properties": {name: _DATE}} for name in ("date_from", "date_to")]}
# What stands between members, or inside a text: no member's type can say it, and an engine refuses it.
REFINED: Mapping[type[msgspec.Struct], Json] = {
    models.NotePatch: {
        "anyOf": [
            {"required": [name], "properties": {name: {"type": "string"}}} for name in ("text", "title")
        ]
    },
    models.SearchRequest: {
        "not": {
            "required": ["mode", "fts_only"],
            "anyOf": [
                {"properties": {"fts_only": {"const": True}, "mode": {"enum": ["hybrid", "vector"]}}},
                {"properties": {"fts_only": {"const": False}, "mode": {"const": "fts"}}},
            ],
        }
    },
    models.Filters: _DATES,
    ragler.VectorFilters: _DATES,
    # It has a default so that its absence has a code of its own; it is required all the same.
    ClearQuery: {
        "properties": {"confirm": {"type": "boolean", "const": True, "description": "must be true"}},
        "required": ["confirm"],
    },
}
