"""Authentication of bearer tokens: named keys, the key of the settings, tokens of an issuer."""

from __future__ import annotations

from kb_contracts.access.keys import Key, KeyRing
from kb_server.access.grants import Meter, grant_of_key
from kb_server.access.oauth import TokenVerifier
from mcp_aiohttp.authentication import TokenRefused
from mcp_aiohttp.protocol.caller import Identity


class Callers:
    """An `Authenticator` for the hosting; each identity carries its `Grant`."""

    def __init__(self, keys: KeyRing, meter: Meter, tokens: TokenVerifier | None = None) -> None:
        self._keys = keys
        self._meter = meter
        self._tokens = tokens
        self._identities: dict[str, tuple[Key, Identity]] = {}
        """By the name of the key: the key, and the identity made from it."""

    @property
    def name(self) -> str:
        """The name of the bearer token in messages."""
        if self._tokens is not None:
            return "token"
        return "key" if self._keys.has_file_keys else "KB_MCP_API_KEY"

    @property
    def is_needed(self) -> bool:
        return self._tokens is not None or self._keys.is_needed

    async def authenticate(self, token: str) -> Identity | None:
        """Return the identity of the sender.

        Raises TokenRefused: the token has expired, was revoked or is invalid.
        """
        key = self._keys.find(token)
        if key is not None:
            return self._identity(key)
        if reason := self._keys.why_not(token):
            raise TokenRefused(f"This key {reason}. Ask for a new one.", is_guess=False)
        if self._tokens is not None and token.count(".") == 2:
            return await self._tokens.identity(token)
        return None

    def _identity(self, key: Key) -> Identity:
        made_of, identity = self._identities.get(key.name, (None, None))
        if identity is None or made_of is not key:
            identity = Identity(key.name, grant_of_key(key, self._meter))
            self._identities[key.name] = (key, identity)
        return identity
