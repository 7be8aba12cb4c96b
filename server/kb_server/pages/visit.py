"""One request for a page: by whom, with what, and what it is answered with."""

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
    "removed": "Removed. For some time it is among the removed documents.",
    "purged": "Removed, with all that was kept of it.",
    "restored": "Restored.",
    "cancelled": "The job is cancelled.",
    "queued": "The job is queued again.",
}
"""What a page says of the form that led to it."""

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
"""Of every answer: nothing that a page shows can run."""


class Visit:
    """One request for a page, by somebody who may see it: what `grant` says."""

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
        """The page that a template makes of the values."""
        return self._render(
            template,
            status,
            path=self.request.path,
            done=DONE.get(self.query.get("done", ""), ""),
            **values,
        )

    def again(self, **changed: object) -> str:
        """The address of this page with other parameters; an empty one is left out."""
        given = {name: value for name, value in self.query.items() if name not in ("done", *changed)}
        given |= {name: str(value) for name, value in changed.items() if value not in ("", None)}
        return f"{self.request.path}?{urlencode(given)}" if given else self.request.path

    def around(self, offset: int, count: int, total: int, size: int) -> dict[str, str]:
        """The addresses of the page before and the page after this one; empty where there is none."""
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
    """Lead the browser there."""
    headers = {hdrs.LOCATION: there, hdrs.CACHE_CONTROL: "no-store"}
    return web.Response(status=303, headers=headers, content_type="text/plain")


def filled(**values: object) -> dict[str, object] | None:
    """What is not empty."""
    return {name: value for name, value in values.items() if value not in ("", None)} or None


def fit(kind: type[S], **values: object) -> S:
    """A request of this kind; what is empty counts as not given.

    Raises:
        FormError: the values do not fit.
    """
    try:
        return msgspec.convert(filled(**values) or {}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise FormError(f"That does not fit: {error}.", 422) from error


def listed_in(text: str) -> list[str]:
    """The tags that a field lists, with commas between them."""
    return [tag for each in text.split(",") if (tag := each.strip())]


def collection_of(tags: Sequence[str]) -> str:
    return split_tags(tags).collection or ""


def tags_of(tags: Sequence[str]) -> list[str]:
    return split_tags(tags).tags
