"""The contract as the engine serves it: a page for people at `/docs`, and its OpenAPI documents.

Their content is public in the repository, so they need no key.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from typing import Any

from aiohttp import web

from kb_contracts.api.operations import ApiSurface, of_surface

PAGE = "/docs"
PATHS: Mapping[str, ApiSurface] = {f"/openapi/{part.value}.json": part for part in ApiSurface}
OPEN = frozenset({PAGE, *PATHS})
"""Paths that need no key."""

_STYLE = """
:root { color-scheme: light dark; --link: #2a4fc4; --page: #fff; --ink: #1b2430; }
@media (prefers-color-scheme: dark) { :root { --link: #9db3ff; --page: #12161e; --ink: #e8ebf0; } }
a { color: var(--link); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem;
  background: var(--page); color: var(--ink); overflow-wrap: anywhere; }
summary { cursor: pointer; padding: .2rem 0; } code { font-size: .92em; overflow-wrap: anywhere; }
details > div { padding: 0 0 1rem 1.2rem; } h3 { font-size: 1rem; margin: .8rem 0 .2rem; }
dl { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 5fr); gap: .1rem 1rem; margin: 0; }
dd { margin: 0; } .method { display: inline-block; min-width: 4.5rem; font-weight: 600; }
"""
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "max-age=300",
}

Json = dict[str, Any]


def add_documents(app: web.Application) -> None:
    """Serve the page and the documents, each made at its first request."""

    async def page(_request: web.Request) -> web.Response:
        text = await asyncio.to_thread(_page)
        return web.Response(text=text, content_type="text/html", headers=_HEADERS)

    async def document(request: web.Request) -> web.Response:
        body = await asyncio.to_thread(_encoded, PATHS[request.path])
        return web.Response(body=body, content_type="application/json", headers=_HEADERS)

    app.router.add_get(PAGE, page)
    for path in PATHS:
        app.router.add_get(path, document)


@cache
def _document(part: ApiSurface) -> Json:
    # Imported here: it takes a tenth of a second, and most engines never need it.
    from kb_contracts.openapi import ABOUT, document

    return document(of_surface(part), ABOUT[part])


@cache
def _encoded(part: ApiSurface) -> bytes:
    return json.dumps(_document(part)).encode()


@cache
def _page() -> str:
    parts = "".join(_part(_document(part), path) for path, part in PATHS.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>The API of kb\'s engine</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main><h1>The API of kb's engine</h1>{parts}</main></body>"
        "</html>"
    )


def _part(document: Json, path: str) -> str:
    info = document["info"]
    operations = (
        _operation(document, method, where, operation)
        for where, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    return (
        f"<section><h2>{escape(info['title'])} {escape(info['version'])}</h2><p>{escape(info['summary'])} "
        f'<a href="{path}">OpenAPI</a></p>{"".join(operations)}</section>'
    )


def _operation(document: Json, method: str, path: str, operation: Json) -> str:
    parameters = [_resolved(document, each) for each in operation.get("parameters", [])]
    bodies = operation.get("requestBody", {}).get("content", {})
    inside = _list(
        "Parameters",
        ((f"{each['name']} ({each['in']})", _described(_schema(each), each)) for each in parameters),
    )
    for kind, content in bodies.items():
        inside += _list(f"Body, {kind}", _members(document, content["schema"]))
    answers = {
        status: _resolved(document, answer) for status, answer in operation.get("responses", {}).items()
    }
    inside += _list("Answers", ((status, each.get("description", "")) for status, each in answers.items()))
    return (
        f"<details><summary><span class=method>{method.upper()}</span> <code>{escape(path)}</code> "
        f"{escape(operation.get('summary', ''))}</summary><div>{inside}</div></details>"
    )


def _schema(parameter: Json) -> Json:
    """Return the schema of a parameter, also if its value is JSON."""
    holder: Json = parameter.get("content", {}).get("application/json", parameter)
    schema: Json = holder["schema"]
    return schema


def _list(title: str, entries: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<dt><code>{escape(name)}</code></dt><dd>{escape(what)}</dd>" for name, what in entries)
    return f"<h3>{escape(title)}</h3><dl>{rows}</dl>" if rows else ""


def _members(document: Json, schema: Json) -> Iterable[tuple[str, str]]:
    resolved = _resolved(document, schema)
    required = set(resolved.get("required", []))
    for name, member in resolved.get("properties", {}).items():
        yield name + ("" if name in required else "?"), _described(member, member)


def _described(schema: Json, described: Json) -> str:
    """Return the type of a value and its description."""
    kinds = [
        each.get("type") or each.get("$ref", "").rpartition("/")[2] for each in schema.get("anyOf", [schema])
    ]
    kind = " or ".join(str(each) for each in kinds if each)
    return ": ".join(each for each in (kind, described.get("description", "")) if each)


def _resolved(document: Json, value: Json) -> Json:
    """Return the target of a reference within the document."""
    while "$ref" in value:
        found: Any = document
        for step in value["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        value = found
    return value
