"""One request for a page: its caller, its input and its response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
from aiohttp import hdrs, web

from kb_contracts.api import models as m
from kb_contracts.api.operations import LIST_TAGS, TagsQuery
from kb_contracts.semantics.validation import mismatch_of
from kb_server.access.grants import Grant
from kb_server.collection_tags import PREFIX, split_tags
from kb_server.engine_client.errors import EngineFault
from kb_server.engine_client.port import Engine
from kb_server.hosting.arguments import takes
from kb_server.pages.forms import Form, FormError
from kb_server.schema import input_schema
from kb_server.services import Services
from kb_server.waiting import Clock

S = TypeVar("S", bound=msgspec.Struct)

_PAGE, _MOST_TAGS = 1_000, 10_000
_ONE = ThreadPoolExecutor(1, "pages")

DONE = {
    "added": "Accepted. It can be searched when its job has completed.",
    "saved": "Saved.",
    "update": "Accepted. The note has its new text when its job has completed.",
    "removed": "Removed. It can be restored from the removed documents for some time.",
    "purged": "Removed permanently, with its earlier versions.",
    "restored": "Restored.",
    "cancelled": "The job is cancelled.",
    "queued": "The job is queued again.",
}
"""The message on a page after a submitted form."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Under "no-referrer" a browser hides the origin of its own forms too, and they would be refused.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every response; the policy prevents the execution of content."""


class Refusal(NamedTuple):
    """The reason why a form was not accepted. `field` is the name of its field, or empty."""

    status: int
    message: str
    field: str


class Choices(NamedTuple):
    """The collections that a form offers. `is_open`: others may be typed."""

    names: list[str]
    is_open: bool


@dataclass(eq=False)
class Visit:
    """One request for a page, by a visitor with the permissions of `grant`."""

    request: web.Request
    grant: Grant
    form: Form
    _services: Services
    _render: Callable[..., web.Response]
    refused: Refusal | None = None
    """Set while the page of a refused form is shown again, with the values in `form`."""

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query

    @property
    def engine(self) -> Engine:
        return self._services.engine

    @property
    def clock(self) -> Clock:
        return self._services.clock

    def show(self, template: str, *, status: int = 200, **values: Any) -> web.Response:
        """Render a template with the values."""
        return self._render(
            template,
            status if self.refused is None else self.refused.status,
            refused=self.refused,
            typed=self.form.fields if self.refused else {},
            path=self.request.path,
            rights=self.grant.access.rights,
            done=DONE.get(self.query.get("done", ""), ""),
            **values,
        )

    def again(self, **changed: object) -> str:
        """Return the address of this page with other parameters; an empty one is left out."""
        given = {name: value for name, value in self.query.items() if name not in ("done", *changed)}
        given |= {name: str(value) for name, value in changed.items() if value not in ("", None)}
        return f"{self.request.path}?{urlencode(given)}" if given else self.request.path

    def around(self, offset: int, count: int, total: int, size: int) -> dict[str, str]:
        """Return the addresses of the previous and the next page; empty if there is no such page."""
        after = offset + count
        return {
            "previous": self.again(offset=max(0, offset - size) or None) if offset else "",
            "following": self.again(offset=after) if count and after < total else "",
        }

    async def collections(self) -> list[m.TagCount]:
        query = TagsQuery(prefix=PREFIX, limit=_PAGE)
        return (await self.engine.call(LIST_TAGS, query=query)).tags

    async def tags(self) -> list[m.TagCount]:
        """Return the tags that name no collection, the most used first."""
        found: list[m.TagCount] = []
        for offset in range(0, _MOST_TAGS, _PAGE):
            page = await self.engine.call(LIST_TAGS, query=TagsQuery(offset=offset, limit=_PAGE))
            found += page.tags
            if len(found) >= page.total:
                break
        tags = [each for each in found if not each.tag.startswith(PREFIX)]
        return sorted(tags, key=lambda each: -each.documents)

    def narrowed(self, tag: str) -> str:
        """Return the address of this page for documents that also have this tag."""
        if tag.startswith(PREFIX):
            return self.again(collection=tag.removeprefix(PREFIX), cursor="", offset="")
        given = listed_in(self.query.get("tag", ""))
        return self.again(tag=",".join([*given, tag]), cursor="", offset="")

    async def choices(self) -> Choices:
        """Return the collections that the visitor's key may give to a document."""
        try:
            return self.choices_of(await self.collections())
        except EngineFault:
            if self.refused is None:
                raise
            return self.choices_of([])  # the form comes back even if the engine is away

    def choices_of(self, collections: Sequence[m.TagCount]) -> Choices:
        """Return the choices, with all collections of the access scope given."""
        reach, names = self.grant.access.reach, [name for name, *_ in sizes(collections)]
        if reach is None:
            return Choices(names, is_open=True)
        own = {tag.removeprefix(PREFIX) for tag in reach.tags if tag.startswith(PREFIX)}
        own |= {name for name in names if reach.has(PREFIX + name)}
        is_open = any(prefix.startswith(PREFIX) or PREFIX.startswith(prefix) for prefix in reach.prefixes)
        return Choices(sorted(own), is_open)


def go(there: str) -> web.Response:
    """Redirect the browser."""
    headers = {hdrs.LOCATION: there, hdrs.CACHE_CONTROL: "no-store"}
    return web.Response(status=303, headers=headers, content_type="text/plain")


async def rendered(function: str, *arguments: Any) -> Any:
    """Return the result of a function of `rendering`, on a thread of its own, which imports it at first."""

    def run() -> Any:
        return getattr(import_module("kb_server.pages.rendering"), function)(*arguments)

    return await asyncio.get_running_loop().run_in_executor(_ONE, run)


def filled(**values: object) -> dict[str, object] | None:
    """Return the values that are not empty."""
    return {name: value for name, value in values.items() if value not in ("", None)} or None


def fit(kind: type[S], **values: object) -> S:
    """Return a request of this kind; an empty value counts as missing.
    Raises FormError: the values do not fit.
    """
    try:
        return msgspec.convert(filled(**values) or {}, kind, strict=False)
    except msgspec.ValidationError as error:
        field = mismatch_of(error).place.removeprefix(".")
        raise FormError(f"The input is invalid: {_expected(kind, field)}.", 422, field) from error


def _expected(kind: type[msgspec.Struct], field: str) -> str:
    """Describe the values of a field in words, without the pattern that they match."""
    schema = input_schema(kind)
    for name in field.split("."):
        schema = schema.get("properties", {}).get(name, {})
    return f"`{field}` takes {takes({key: value for key, value in schema.items() if key != 'pattern'})}"


def listed_in(text: str) -> list[str]:
    """Return the tags in a field, which are separated by commas."""
    return [tag for each in text.split(",") if (tag := each.strip())]


def collection_of(tags: Sequence[str]) -> str:
    return split_tags(tags).collection or ""


def sizes(counts: Sequence[m.TagCount]) -> list[tuple[str, int, int]]:
    """Return the name, documents and passages of each collection or tag."""
    return [(each.tag.removeprefix(PREFIX), each.documents, each.chunks) for each in counts]


def tags_of(tags: Sequence[str]) -> list[str]:
    return split_tags(tags).tags
