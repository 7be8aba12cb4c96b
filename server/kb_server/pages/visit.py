"""One request for a page: its caller, its input and its response."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
from aiohttp import hdrs, web

from kb_contracts.api import models as m
from kb_contracts.api.operations import LIST_TAGS, TagsQuery
from kb_server.access.grants import Grant
from kb_server.collection_tags import PREFIX, split_tags
from kb_server.engine_client.port import Engine
from kb_server.pages.forms import Form, FormError
from kb_server.services import Services
from kb_server.waiting import Clock

S = TypeVar("S", bound=msgspec.Struct)

_COLLECTIONS = 1_000

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


class Visit:
    """One request for a page, by a visitor with the permissions of `grant`."""

    def __init__(
        self,
        request: web.Request,
        grant: Grant,
        form: Form,
        services: Services,
        render: Callable[..., web.Response],
    ) -> None:
        self.request = request
        self.grant = grant
        self.query: Mapping[str, str] = request.query
        self.form = form
        self._services = services
        self._render = render

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
            status,
            path=self.request.path,
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
        query = TagsQuery(prefix=PREFIX, limit=_COLLECTIONS)
        return (await self.engine.call(LIST_TAGS, query=query)).tags

    async def collection_names(self) -> list[str]:
        return [each.tag.removeprefix(PREFIX) for each in await self.collections()]


def go(there: str) -> web.Response:
    """Redirect the browser."""
    headers = {hdrs.LOCATION: there, hdrs.CACHE_CONTROL: "no-store"}
    return web.Response(status=303, headers=headers, content_type="text/plain")


def filled(**values: object) -> dict[str, object] | None:
    """Return the values that are not empty."""
    return {name: value for name, value in values.items() if value not in ("", None)} or None


def fit(kind: type[S], **values: object) -> S:
    """Return a request of this kind; an empty value counts as missing.

    Raises:
        FormError: the values do not fit.
    """
    try:
        return msgspec.convert(filled(**values) or {}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise FormError(f"The input is invalid: {error}.", 422) from error


def listed_in(text: str) -> list[str]:
    """Return the tags in a field, which are separated by commas."""
    return [tag for each in text.split(",") if (tag := each.strip())]


def collection_of(tags: Sequence[str]) -> str:
    return split_tags(tags).collection or ""


def tags_of(tags: Sequence[str]) -> list[str]:
    return split_tags(tags).tags
