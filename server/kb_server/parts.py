"""The optional parts of the server: `kb_config.parts` has their form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kb_config import parts as form

if TYPE_CHECKING:
    from aiohttp import web

    from kb_config.settings import Settings
    from mcp_aiohttp.authentication import ProtectedResource
    from mcp_aiohttp.protocol.caller import Identity

PARTS = (
    "kb_server.pages",
    "kb_server.oauth",
)


class Site(Protocol):
    """Pages for browsers."""

    async def root(self, request: web.Request) -> web.Response | None:
        """Return the first page, or the one for an unknown path; None if the client does not accept HTML."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return all routes but the first page."""


class Issuer(Protocol):
    """Checks the access tokens of an authorization server."""

    async def identity(self, token: str) -> Identity | None:
        """See `Verifier.identity`."""

    def resource(self, base: Callable[[], str]) -> ProtectedResource:
        """Return the metadata by which clients get a token; `base` returns the base URL of this server."""


@dataclass(frozen=True, slots=True)
class Part(form.Part):
    """An optional part of the server.

    `site` and `issuer` are `module:function`; the functions take the `Services` of the server, and return a
    `Site` and an `Issuer`.
    """

    site: str = ""
    issuer: str = ""


def parts() -> Iterator[Part]:
    """Yield the parts of `PARTS`."""
    return form.loaded(PARTS)


def site_part(settings: Settings) -> Part | None:
    """Return the part that serves pages with these settings, or None."""
    return next((part for part in parts() if part.site and part.is_on(settings)), None)


def issuer_part(settings: Settings) -> Part | None:
    """Return the part that checks tokens of an issuer with these settings, or None."""
    return next((part for part in parts() if part.issuer and part.is_on(settings)), None)
