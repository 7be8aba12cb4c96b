"""The settings of OAuth: the authorization server, and the scopes of its tokens."""

from __future__ import annotations

from typing import Annotated, get_args
from urllib.parse import urlsplit

import msgspec

from kb_config.parts import PartSettings
from kb_config.settings import Setting, SettingsError
from kb_contracts.access.reach import Right

OAUTH_SCOPES = (
    "read=kb:read",
    "write=kb:write",
    "delete=kb:delete",
    "administer=kb:admin",
    "collection=kb:collection:",
)


class OAuthSettings(PartSettings, frozen=True, kw_only=True):
    """The accepted tokens; without an issuer none is accepted."""

    oauth_issuer: Annotated[
        str, Setting("KB_OAUTH_ISSUER", "URL of the accepted OAuth authorization server; empty: OAuth is off")
    ] = ""
    oauth_audience: Annotated[
        list[str],
        Setting(
            "KB_OAUTH_AUDIENCE", "accepted token audiences, comma-separated; empty: the URLs of this server"
        ),
    ] = msgspec.field(default_factory=list)
    oauth_scopes: Annotated[
        list[str],
        Setting(
            "KB_OAUTH_SCOPES",
            "scope of each right, as RIGHT=SCOPE,...; collection=PREFIX: prefix of collection scopes",
        ),
    ] = msgspec.field(default_factory=lambda: list(OAUTH_SCOPES))

    @property
    def is_on(self) -> bool:
        """True if an issuer is set."""
        return bool(self.oauth_issuer)

    def __post_init__(self) -> None:
        issuer = urlsplit(self.oauth_issuer)
        local = issuer.hostname in ("127.0.0.1", "::1", "localhost")
        if self.oauth_issuer and not (
            issuer.hostname and (issuer.scheme == "https" or (issuer.scheme == "http" and local))
        ):
            raise SettingsError("KB_OAUTH_ISSUER: takes an https:// URL; http:// on this machine alone")
        if issuer.query or issuer.fragment:
            raise SettingsError("KB_OAUTH_ISSUER: takes a URL without a query and a fragment")
        names = {*get_args(Right), "collection"}
        for pair in self.oauth_scopes:
            right, _, scope = pair.partition("=")
            if right not in names or not scope or not scope.isascii() or not scope.isprintable():
                rights = ", ".join(sorted(names))
                raise SettingsError(f"KB_OAUTH_SCOPES={pair!r}: takes RIGHT=SCOPE; rights are {rights}")
