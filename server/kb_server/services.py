"""The services of the toolsets: settings, engine, uploads and access, each opened when first used."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from functools import cached_property
from secrets import token_hex
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from kb_config.parts import imported
from kb_config.rendezvous import Rendezvous
from kb_config.settings import SettingsError
from kb_config.shared import addresses
from kb_contracts.access.keys import KeyRing, KeysDamaged
from kb_contracts.access.local import local_token
from kb_server.access.grants import Meter
from kb_server.engine_client.port import Engine
from kb_server.engine_faults import tool_error
from kb_server.parts import Issuer, issuer_part
from kb_server.settings import ServerSettings, engine_tls
from kb_server.waiting import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from kb_http.direct import DirectCalls
    from kb_server.access.grants import Callers
    from kb_server.engine_client.client import HttpEngine
    from kb_server.engine_client.ragler_http import HttpRagler
    from kb_server.engine_client.transport import Exchange
    from kb_server.uploads.service import Uploads
    from mcp_aiohttp.authentication import ProtectedResource

SERVER_VERSION = "3.0.0"
STAGED_FILES = 10
"""The staging quota, in files of the largest size."""
SHARED_FILES = 5
"""Maximum share of one caller, in files of the largest size, so that other callers find room."""

logger = logging.getLogger(__name__)

_WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - what is never handed to an agent


class Services:
    """The services available to toolsets. Close it by leaving it as a context, or with `close`.

    `http_base` is the base of the URLs handed to agents, None without an HTTP server (bare stdio); hosting
    may set it once the port is known. `instance` names the staging folder; the workers of one server share
    one. `calls` are the operations of an engine in this process, which is then not called over HTTP.
    Raises SettingsError: the URL or the key of the engine or of RAGler's backend, or the authority of the
    engine's certificate, cannot be used.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        http_base: str | None = None,
        instance: str | None = None,
        engine: Engine | None = None,
        ragler: HttpRagler | None = None,
        calls: DirectCalls | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        _check("KB_ENGINE_URL", settings.engine_url, "KB_API_KEY", settings.engine_api_key)
        _check("RAGLER_API_URL", settings.ragler_api_url, "RAGLER_API_KEY", settings.ragler_api_key)
        self._tls = engine_tls(settings.engine_ca)
        self.settings = settings
        self.clock = clock
        self.http_base = http_base
        self.paths: Sequence[str] = ()
        """Paths at which MCP is served; a token may name each of them as its audience."""
        self.instance = instance or f"{os.getpid()}-{token_hex(4)}"
        """An unpredictable name, the same in all workers of a server."""
        self._calls = calls
        self._clients: list[HttpEngine | HttpRagler] = []
        if engine is not None:
            self.engine = engine
        if ragler is not None:
            self.ragler = ragler

    async def __aenter__(self) -> Self:
        """Remove the staging folders of servers that no longer run."""
        from kb_server.uploads.staging import remove_dead

        try:
            await asyncio.to_thread(remove_dead, self.settings.home / "staging")
        except OSError:
            # A server without uploads works without its data folder; an upload will report the error.
            logger.warning("the staging folder cannot be read", exc_info=True)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Close the services; see `close`."""
        await self.close()

    @cached_property
    def keys(self) -> KeyRing:
        """The keys of this server's callers. Raises SettingsError: the file of keys cannot be used."""
        return checked_keys(self.settings)

    @cached_property
    def callers(self) -> Callers:
        """Authenticates callers over HTTP. Raises SettingsError, as `keys`."""
        from kb_server.access.grants import Callers

        return Callers(self.keys, self.meter, self.tokens)

    @cached_property
    def meter(self) -> Meter:
        """Enforces the quotas of keys."""
        from kb_server.access.quotas import FileMeter

        return FileMeter(self.settings.home / "usage.json", self.settings.workers)

    @cached_property
    def tokens(self) -> Issuer | None:
        """The issuer whose tokens callers may use; None if the settings name none."""
        part = issuer_part(self.settings)
        return None if part is None else imported(part.issuer)(self)

    @property
    def resource(self) -> ProtectedResource | None:
        """The metadata by which clients get a token; None without an issuer."""
        return None if self.tokens is None else self.tokens.resource(lambda: self.public_base)

    @property
    def public_base(self) -> str:
        """The base of the URLs of this server."""
        return self.http_base or http_base(self.settings)

    @cached_property
    def engine(self) -> Engine:
        """The engine client; it connects on its first call."""
        return self._engine_client

    @cached_property
    def _engine_client(self) -> HttpEngine:
        # Imported here: aiohttp takes longer to import than a stdio server may take to start.
        from kb_server.engine_client.client import HttpEngine

        settings = self.settings
        client = HttpEngine(
            settings.engine_url,
            self._engine_key,
            read_timeout=settings.request_timeout_ms / 1000,
            clock=self.clock,
            exchange=self._exchange(),
            tls=self._tls,
        )
        self._clients.append(client)
        return client

    def _engine_key(self) -> str:
        """Return the engine's key: from the settings, or the owner's token for the data folder's engine."""
        if self.settings.engine_api_key:
            return self.settings.engine_api_key
        place = Rendezvous(self.settings.home / "engine")
        return local_token(place.folder) if place.is_at(self.settings.engine_url) else ""

    @cached_property
    def ragler(self) -> HttpRagler:
        """The client of RAGler's backend; it connects on its first call."""
        from kb_server.engine_client.ragler_http import HttpRagler

        settings = self.settings
        is_engine, key = settings.ragler_is_engine, ragler_key(settings)
        client = HttpRagler(
            settings.ragler_api_url,
            self._engine_key if is_engine and not key else key,
            read_timeout=settings.request_timeout_ms / 1000,
            clock=self.clock,
            ensure_reach=self._engine_client.ensure_reach if is_engine else None,
            exchange=self._exchange() if is_engine else None,
            tls=self._tls if is_engine else None,
        )
        self._clients.append(client)
        return client

    def _exchange(self) -> Exchange | None:
        """Return the transport to an engine in this process; None for HTTP."""
        if self._calls is None:
            return None
        from kb_server.engine_client.direct import DirectExchange

        return DirectExchange(self._calls, self.settings.engine_url)

    @property
    def ragler_is_configured(self) -> bool:
        """True if RAGler's backend can be called: its URL or a key was set, or it is the engine.

        A backend may need no key; one that does reports it.
        """
        settings = self.settings
        return bool(settings.ragler_api_key) or settings.ragler_api_url_is_set or settings.ragler_is_engine

    @cached_property
    def uploads(self) -> Uploads:
        """The uploads; the staging folder is made by the first upload."""
        from kb_server.uploads.service import Limits, Uploads

        limits = Limits(
            file_bytes=self.settings.max_upload_bytes,
            staging_bytes=STAGED_FILES * self.settings.max_upload_bytes,
            share_bytes=SHARED_FILES * self.settings.max_upload_bytes,
            seconds=self.settings.upload_ttl,
        )
        return Uploads(self.settings.home, self.instance, limits, self.engine, self.clock)

    async def unready(self) -> str:
        """Return why the engine cannot serve this server, or "". The server runs in either case."""
        fault = await self.engine.unready()
        if fault is None:
            return ""
        return f"no engine is ready at {self.settings.engine_url}: {tool_error(fault).message}"

    async def close(self) -> None:
        """Close the opened services."""
        if "uploads" in vars(self):
            await self.uploads.close()
            del self.uploads
        for client in self._clients:
            await client.close()


def checked_keys(settings: ServerSettings) -> KeyRing:
    """Return the keys of the server's callers. Raises SettingsError: the file of keys cannot be used."""
    try:
        return KeyRing(settings.keys_file, {"KB_MCP_API_KEY": settings.api_key})
    except KeysDamaged as error:
        raise SettingsError(f"KB_KEYS: {error}") from error


def http_base(settings: ServerSettings, port: int | None = None) -> str:
    """Return the base of the URLs handed to agents: `KB_PUBLIC_URL`, or the listening address.

    `port` is the one listened on, if the system chose it. The base is never taken from a request, because the
    sender of a request must not choose where other callers upload to.
    """
    if settings.public_url:
        return settings.public_url.rstrip("/")
    host = "127.0.0.1" if settings.host in _WILDCARDS else settings.host
    scheme = "https" if settings.tls_cert else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port if port is None else port}"


def misses_public_url(settings: ServerSettings) -> bool:
    """True if the server listens for other machines, but the URLs that it hands out work only on this one."""
    return settings.host in _WILDCARDS and not settings.public_url


def ragler_key(settings: ServerSettings) -> str:
    """Return the bearer key of RAGler's backend; the engine's, if that is the backend and has no other."""
    return settings.ragler_api_key or (settings.engine_api_key if settings.ragler_is_engine else "")


def _check(url_variable: str, url: str, key_variable: str, key: str) -> None:
    try:
        parts = [urlsplit(each) for each in addresses(url)]
        usable = all(
            each.scheme in ("http", "https")
            and each.hostname
            and each.port != 0
            and each.path == parts[0].path
            for each in parts
        )
    except ValueError:
        usable = False
    if not usable:
        raise SettingsError(
            f"{url_variable}: takes a base URL, such as http://engine:8000, or several of the same path, "
            "separated by commas"
        )
    if not (key.isascii() and key.isprintable()):
        raise SettingsError(f"{key_variable}: takes printable ASCII characters only")
