"""Who may see the pages: sessions, which a cookie carries, and the token by which forms are known as ours.

A session is an expiry and a random number, signed with a key that is derived from the server's: nothing is
stored, every worker knows every session, and none outlives a change of the key. Where the server has no key
everybody has a session, for the forms: a page of a stranger cannot read the token that goes with it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

COOKIE = "kb_session"
SESSION_SECONDS = 7 * 24 * 3600

_NONCE_BYTES = 16


class Sessions:
    def __init__(self, key: str, now: Callable[[], float] = time.time) -> None:
        """`key` is what a login asks for; empty: there is no login."""
        self._key = key.strip().encode()
        self._secret = hmac.digest(self._key, b"kb pages", "sha256")
        self._now = now

    @property
    def needs_login(self) -> bool:
        return bool(self._key)

    def admits(self, key: str) -> bool:
        """Whether this is the key of the server."""
        return hmac.compare_digest(key.strip().encode(errors="surrogateescape"), self._key)

    def begin(self) -> str:
        """A new session, as the cookie carries it."""
        content = f"{int(self._now()) + SESSION_SECONDS}.{secrets.token_hex(_NONCE_BYTES)}"
        return f"{content}.{self._sign('session', content)}"

    def is_valid(self, session: str) -> bool:
        content, _, signature = session.rpartition(".")
        if not _same(signature, self._sign("session", content)):
            return False
        return int(content.partition(".")[0]) > self._now()

    def form_token(self, session: str) -> str:
        """What the forms of a session carry."""
        return self._sign("form", session)

    def is_form_token(self, session: str, token: str) -> bool:
        return _same(token, self.form_token(session))

    def _sign(self, purpose: str, content: str) -> str:
        message = f"{purpose} {content}".encode(errors="surrogateescape")
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), right.encode())
