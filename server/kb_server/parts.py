"""The optional parts of the server: each is a package with a `PART`, and its line in `PARTS`.

Without the package and its line the server starts without the part. The package itself imports its settings
alone; its other modules are imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from kb_config.settings import Settings

if TYPE_CHECKING:
    from aiohttp import web

    from mcp_aiohttp.authentication import ProtectedResource
    from mcp_aiohttp.protocol.caller import Identity

PARTS = (
    "kb_server.pages",
    "kb_server.oauth",
)


class Site(Protocol):
    """Pages for browsers."""

    async def root(self, request: web.Request) -> web.Response | None:
        """Return the first page; None if the client does not accept HTML."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return all routes but the first page."""


class Issuer(Protocol):
    """Checks the access tokens of an authorization server."""

    async def identity(self, token: str) -> Identity | None:
        """See `Verifier.identity`."""

    def resource(self, base: Callable[[], str]) -> ProtectedResource:
        """Return the metadata by which clients get a token; `base` returns the base URL of this server."""


@dataclass(frozen=True, slots=True)
class Part:
    """An optional part.

    `switch` is the field of its settings that switches it on. `site` and `issuer` are `module:function`; the
    functions take the `Services` of the server, and return a `Site` and an `Issuer`.
    """

    name: str
    settings: type[Settings]
    switch: str
    site: str = ""
    issuer: str = ""

    def is_on(self, settings: Settings) -> bool:
        """True if the settings of the server switch the part on."""
        return bool(getattr(settings.of(self.settings), self.switch))


def parts() -> Iterator[Part]:
    """Yield the parts of `PARTS`."""
    for module in PARTS:
        part: Part = import_module(module).PART
        yield part


def site_part(settings: Settings) -> Part | None:
    """Return the part that serves pages with these settings, or None."""
    return next((part for part in parts() if part.site and part.is_on(settings)), None)


def issuer_part(settings: Settings) -> Part | None:
    """Return the part that checks tokens of an issuer with these settings, or None."""
    return next((part for part in parts() if part.issuer and part.is_on(settings)), None)


def made(function: str, services: object) -> Any:
    """Import `module:function` and call it with the services."""
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)(services)
