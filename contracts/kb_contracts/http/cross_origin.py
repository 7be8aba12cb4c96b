"""Keeps the web pages of strangers away from an engine that requires no key.

A browser on this machine reaches the engine's port on behalf of any page that it shows. Such a page cannot
read a response, but it can post a form with a file, which is how a file is submitted; its Origin header gives
it away. A page whose own name is made to resolve to this machine (DNS rebinding) could read responses too; it
is recognised by its Host header, which is a domain, because a stranger owns no name without a dot. An engine
that listens on more than loopback cannot know the names that it is reached by, and checks the Origin alone.
With a key set neither matters: no page knows it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from multidict import MultiMapping

from kb_contracts.api.errors import EngineError
from kb_contracts.http.connection_limits import is_loopback

_ONCE = (hdrs.AUTHORIZATION, hdrs.ORIGIN)


def reject_cross_origin(host: str) -> Any:
    """A middleware for an engine without a key that listens on `host`.

    It responds `unauthorized` to a request by a foreign page, because a key is what such a request lacks.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        check_origin(request.headers, host)
        return await handler(request)

    return middleware


def check_origin(headers: MultiMapping[str], host: str) -> None:
    """Refuse a request by a foreign page to an engine that listens on `host`.

    Raises:
        EngineError: `unauthorized`.
    """
    origin = headers.get(hdrs.ORIGIN)
    if origin is not None and not _is_local(origin):
        raise EngineError("unauthorized", "Web pages may not use an engine that has no KB_API_KEY.")
    if _listens_locally(host) and _is_domain(f"//{headers.get(hdrs.HOST, '')}"):
        raise EngineError("unauthorized", "Without a KB_API_KEY this engine serves no Host that is a domain.")


def check_unrepeated(headers: MultiMapping[str]) -> None:
    """Refuse a request whose two `Authorization` or `Origin` headers two readers could read differently.

    Raises:
        EngineError: `unauthorized`.
    """
    for name in _ONCE:
        if len(headers.getall(name, ())) > 1:
            raise EngineError("unauthorized", f"Send the header {name} once.")


# Callers send the same few names with every request.
@lru_cache(maxsize=256)
def _is_local(url: str) -> bool:
    return is_loopback(_name(url))


_listens_locally = lru_cache(maxsize=16)(is_loopback)


@lru_cache(maxsize=256)
def _is_domain(url: str) -> bool:
    name = _name(url)
    return "." in name.strip(".") and not is_loopback(name)


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
