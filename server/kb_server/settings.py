"""The server's settings: one typed object, read once, refused at start when a value is wrong."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import msgspec

from kb_config import shared
from kb_config.audit import AuditSettings
from kb_config.settings import Setting, Settings, SettingsError, check_pair
from kb_http.certificate import CertificateUnusable, trusting
from kb_http.limits import CONNECTIONS
from kb_server.parts import parts

RAGLER = "ragler"


class ServerSettings(Settings, frozen=True, kw_only=True):
    """Settings of the MCP server. Sizes are bytes, times are seconds."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        **shared.HEADER_TIMEOUT,
        "KB_MAX_WEBSOCKETS": "the maximum is half of KB_MAX_CONNECTIONS",
        "KB_MAX_WEBSOCKETS_PER_ADDRESS": "the maximum is half of KB_MAX_CONNECTIONS_PER_ADDRESS",
        "KB_RESOURCE_LINKS": "results have no resource links; their documents are members of the result",
    }
    engine_url: Annotated[
        str,
        Setting(
            "KB_ENGINE_URL",
            "base URL of the engine, or of several engines on one base, comma-separated; kb stdio and the "
            "commands default to the engine of the data folder",
        ),
    ] = "http://127.0.0.1:8000"
    engine_linger: Annotated[
        float,
        Setting(
            "KB_ENGINE_LINGER", "time from the end of the last kb stdio to the stop of its engine, in seconds"
        ),
        msgspec.Meta(ge=0),
    ] = 300.0
    engine_api_key: Annotated[
        str, Setting("KB_API_KEY", "bearer key for all requests to the engine", secret=True)
    ] = ""
    api_key: Annotated[
        str, Setting("KB_MCP_API_KEY", "bearer key required from agents; empty: none", secret=True)
    ] = ""
    keys: shared.Keys = ""
    host: Annotated[str, Setting("KB_MCP_HOST", "address to listen on")] = "127.0.0.1"
    port: Annotated[int, Setting("KB_MCP_PORT", "port to listen on"), msgspec.Meta(ge=0, le=65535)] = 3000
    ragler_port: Annotated[
        int,
        Setting(
            "MCP_SERVER_PORT",
            "port to listen on if KB_MCP_PORT is not set; the default applies to KB_TOOLSETS=ragler only",
        ),
        msgspec.Meta(ge=0, le=65535),
    ] = 3001
    tls_cert: Annotated[
        str,
        Setting("KB_TLS_CERT", "certificate chain for HTTPS, in PEM, server certificate first; empty: HTTP"),
    ] = ""
    tls_key: Annotated[
        str, Setting("KB_TLS_KEY", "private key of the certificate, in PEM, without a password")
    ] = ""
    engine_ca: Annotated[
        str,
        Setting("KB_ENGINE_CA", "CA certificates for the engine's certificate, in PEM; empty: the system's"),
    ] = ""
    workers: Annotated[
        int,
        Setting("KB_WORKERS", "number of server processes that share the port"),
        msgspec.Meta(ge=1, le=64),
    ] = 1
    public_url: Annotated[
        str,
        Setting("KB_PUBLIC_URL", "base URL of this server in URLs for agents; empty: the listening address"),
    ] = ""
    toolsets: Annotated[list[str], Setting("KB_TOOLSETS", "toolsets at /mcp, comma-separated")] = (
        msgspec.field(default_factory=lambda: ["kb"])
    )
    allowed_hosts: Annotated[
        list[str],
        Setting("KB_ALLOWED_HOSTS", "accepted Host values besides loopback, comma-separated; *: any"),
    ] = msgspec.field(default_factory=list)
    allowed_origins: Annotated[
        list[str],
        Setting("KB_ALLOWED_ORIGINS", "accepted Origin values besides loopback, comma-separated; *: any"),
    ] = msgspec.field(default_factory=list)
    trusted_proxies: Annotated[
        list[str],
        Setting(
            "KB_TRUSTED_PROXIES",
            "addresses and networks of proxies with a trusted X-Forwarded-For, comma-separated",
        ),
    ] = msgspec.field(default_factory=list)
    max_connections: Annotated[
        int,
        Setting(
            "KB_MAX_CONNECTIONS",
            "maximum number of open connections per worker, half of them WebSockets; reduced to the limit on "
            "open files",
        ),
        msgspec.Meta(ge=1),
    ] = CONNECTIONS
    max_connections_per_address: Annotated[
        int,
        Setting(
            "KB_MAX_CONNECTIONS_PER_ADDRESS",
            "maximum connections per address except loopback, half of them WebSockets; behind a trusted "
            "proxy, maximum requests",
        ),
        msgspec.Meta(ge=1),
    ] = 512
    fast_path: Annotated[
        bool,
        Setting("KB_FAST_PATH", "answer plain tool calls on a fast path that bypasses the MCP SDK's kernel"),
    ] = True
    ask_before_removal: Annotated[
        bool,
        Setting(
            "KB_ASK_BEFORE_REMOVAL",
            "ask the user to confirm the removal of documents, if the client supports it",
        ),
    ] = True
    home: Annotated[Path, Setting("KB_HOME", "data folder")] = Path("~/.local/share/kb")
    max_upload_bytes: Annotated[
        int, Setting("KB_MAX_UPLOAD_BYTES", "maximum size of an upload, in bytes"), msgspec.Meta(ge=1)
    ] = shared.DEFAULT_UPLOAD_BYTES
    upload_ttl: Annotated[
        float,
        Setting("KB_UPLOAD_TTL", "maximum time from start to finish of an upload, in seconds"),
        msgspec.Meta(gt=0),
    ] = 600.0
    file_roots: Annotated[
        list[str],
        Setting(
            "KB_FILE_ROOTS",
            "local folders from which agents may add files by path, comma-separated; empty: none",
        ),
    ] = msgspec.field(default_factory=list)
    text_file: Annotated[str, Setting("KB_TEXT_FILE", "file of the textfile toolset")] = ""
    text_description: Annotated[
        str, Setting("KB_TEXT_DESCRIPTION", "description of the contents of KB_TEXT_FILE")
    ] = ""
    ragler_api_url: Annotated[
        str, Setting("RAGLER_API_URL", "base URL of RAGler's backend, for the ragler toolset")
    ] = "http://localhost:3000"
    ragler_api_key: Annotated[
        str,
        Setting(
            "RAGLER_API_KEY",
            "bearer key for RAGler's backend; KB_API_KEY if the backend is the engine",
            secret=True,
        ),
    ] = ""
    ragler_api_url_is_set: bool = False
    """True if the URL of RAGler's backend was set; not a setting of its own."""
    audit: AuditSettings = AuditSettings()
    log_level: shared.LogLevel = "info"
    enable_metrics: shared.EnableMetrics = True
    request_timeout_ms: Annotated[
        int,
        Setting(
            "REQUEST_TIMEOUT",
            "maximum time without data from the engine or RAGler's backend, in milliseconds",
        ),
        msgspec.Meta(ge=1),
    ] = 30_000

    @classmethod
    def part_kinds(cls) -> Sequence[type[Settings]]:
        """Return the classes of the optional parts' settings."""
        return [part.settings for part in parts()]

    @property
    def keys_file(self) -> Path:
        """The path of the file of keys."""
        return shared.keys_file(self.keys, self.home)

    def __post_init__(self) -> None:
        check_pair("KB_TLS_CERT", self.tls_cert, "KB_TLS_KEY", self.tls_key)
        for proxy in self.trusted_proxies:
            try:
                ip_network(proxy, strict=False)
            except ValueError as error:
                raise SettingsError(f"KB_TRUSTED_PROXIES={proxy!r}: takes addresses and networks") from error

    @property
    def ragler_is_engine(self) -> bool:
        """True if RAGler's backend is the engine: then `KB_API_KEY` is its key, and may be empty."""
        return set(shared.addresses(self.ragler_api_url)) <= set(shared.addresses(self.engine_url))

    @classmethod
    def _gather(
        cls, environ: Mapping[str, str], file: Path | None, flags: Mapping[str, Any]
    ) -> tuple[Self, dict[str, str]]:
        """Gather the settings; RAGler's port replaces ours if only RAGler's is meant."""
        settings, sources = super()._gather(environ, file, flags)
        is_there = sources["RAGLER_API_URL"] != "default"
        settings = msgspec.structs.replace(settings, ragler_api_url_is_set=is_there)
        is_set = sources["MCP_SERVER_PORT"] != "default"
        if sources["KB_MCP_PORT"] == "default" and (is_set or settings.toolsets == [RAGLER]):
            settings = msgspec.structs.replace(settings, port=settings.ragler_port)
            sources["KB_MCP_PORT"] = "MCP_SERVER_PORT"
        return settings, sources


def engine_tls(authorities: str) -> ssl.SSLContext | None:
    """Return the TLS context for the engine from `KB_ENGINE_CA`, or None for the system's authorities.

    Raises SettingsError.
    """
    if not authorities:
        return None
    try:
        return trusting(Path(authorities))
    except CertificateUnusable as error:
        raise SettingsError(f"KB_ENGINE_CA: {error}") from error
