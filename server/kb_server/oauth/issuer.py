"""The signing keys of an authorization server: found by its metadata, cached, and refreshed.

An unknown key id may belong to a new key, so the keys are fetched again; at most every ten seconds, because
key ids can be invented. While the issuer is unreachable the cached keys remain valid for a day.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from kb_server.waiting import SharedWork
from mcp_aiohttp.authentication import AuthenticatorUnavailable, is_loopback

T = TypeVar("T")

log = logging.getLogger(__name__)

_FRESH_SECONDS = 600.0
_LASTING_SECONDS = 86_400.0
_PAUSE_SECONDS = 10.0
_TIMEOUT_SECONDS = 5.0
_MAX_BYTES = 1 << 20
_MAX_KEYS = 100
_MAX_TRIED = 10

ALGORITHMS: Mapping[str, frozenset[str]] = {
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "EC": frozenset({"ES256", "ES384", "ES512"}),
    "OKP": frozenset({"EdDSA"}),
}
"""The signing algorithms by key type."""


class _Metadata(msgspec.Struct):
    issuer: str
    jwks_uri: str


class _Keys(msgspec.Struct):
    keys: list[dict[str, Any]]


class IssuerKeys:
    """The keys of `issuer`."""

    def __init__(self, issuer: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._clock = clock
        self._keys: Sequence[dict[str, Any]] = ()
        self._fetched = self._tried = -_LASTING_SECONDS
        self._fetching = SharedWork(self._fetch)

    async def find(self, key_id: str | None, algorithm: str) -> list[dict[str, Any]]:
        """Return the keys that may have signed a token: the keys with its id; without an id, all that suit.
        Raises AuthenticatorUnavailable: the keys are not known, and cannot be fetched.
        """
        if self._clock() - self._fetched >= _FRESH_SECONDS:
            await self._refresh()
        found = self._among(key_id, algorithm)
        if not found:
            await self._refresh()
            found = self._among(key_id, algorithm)
        return found

    def _among(self, key_id: str | None, algorithm: str) -> list[dict[str, Any]]:
        return [
            key
            for key in self._keys
            if (key_id is None or key.get("kid") == key_id) and _suits(key, algorithm)
        ][:_MAX_TRIED]

    async def _refresh(self) -> None:
        """Fetch the keys again, unless that was tried just now."""
        if self._clock() - self._tried >= _PAUSE_SECONDS:
            await self._fetching.outcome()
        if self._clock() - self._fetched >= _LASTING_SECONDS:
            raise AuthenticatorUnavailable(
                "The keys of the authorization server are unavailable. Try again in a moment.",
                retry_after=_PAUSE_SECONDS,
            )

    async def _fetch(self) -> None:
        self._tried = self._clock()
        local = is_loopback(urlsplit(self._issuer).hostname or "")
        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=not local) as http:
                metadata = await self._metadata(http)
                parts = urlsplit(metadata.jwks_uri)
                if parts.scheme != "https" and not (local and is_loopback(parts.hostname or "")):
                    raise ValueError("its keys are not served by https")
                found = await _read(http, metadata.jwks_uri, _Keys)
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError, ValueError) as error:
            words = "The keys of the authorization server cannot be fetched"
            log.warning(words, extra={"issuer": self._issuer, "reason": str(error) or type(error).__name__})
            return
        self._keys, self._fetched = found.keys[:_MAX_KEYS], self._clock()

    async def _metadata(self, http: httpx.AsyncClient) -> _Metadata:
        """Fetch the metadata in the form of RFC 8414 or of OpenID Connect Discovery."""
        parts = urlsplit(self._issuer)
        origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        last: Exception = ValueError("it publishes no metadata")
        for place in (
            f"{origin}/.well-known/oauth-authorization-server{path}",
            f"{origin}{path}/.well-known/openid-configuration",
            f"{origin}/.well-known/openid-configuration{path}",
        ):
            try:
                metadata = await _read(http, place, _Metadata)
            except (httpx.HTTPStatusError, msgspec.DecodeError, UnicodeDecodeError) as error:
                last = error
                continue
            if metadata.issuer != self._issuer:
                raise ValueError(f"KB_OAUTH_ISSUER has to be {metadata.issuer[:200]!r}, as its metadata says")
            return metadata
        raise last


def _suits(key: Mapping[str, Any], algorithm: str) -> bool:
    """True if a published key can verify signatures of this algorithm."""
    return (
        algorithm in ALGORITHMS.get(str(key.get("kty")), ())
        and key.get("alg", algorithm) == algorithm
        and key.get("use", "sig") == "sig"
    )


async def _read(http: httpx.AsyncClient, url: str, model: type[T]) -> T:
    body = bytearray()
    async with http.stream("GET", url, headers={"Accept": "application/json"}) as response:
        if not response.is_success:
            response.raise_for_status()
            raise ValueError(f"{url} answers {response.status_code}")
        async for block in response.aiter_bytes():
            body += block
            if len(body) > _MAX_BYTES:
                raise ValueError(f"{url} answers with more than {_MAX_BYTES} bytes")
    return msgspec.json.decode(bytes(body), type=model)
