"""Access to the pages: sessions, carried by a cookie, and the token that authenticates forms.

A session is an expiry, a random number and the name of the key that opened it, signed with a key that is
derived from the stored digest of that key's token. So no session is stored, every worker knows every session,
and a session ends when its key is revoked, expires or gets another token. If callers need no token every
visitor has a session, for the forms: a page of another site can neither read nor forge its form token.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from kb_contracts.access.keys import ANYBODY, KeyRing, token_digest
from kb_server.access.grants import EVERYBODY, Grant, Meter, grant_of_key

COOKIE = "kb_session"
PAGES = "pages"
"""The toolset name that a restricted key needs for the pages."""
SESSION_SECONDS = 7 * 24 * 3600

_NONCE_BYTES = 16


@dataclass(frozen=True, eq=False, repr=False)
class Sessions:
    """The sessions of a server whose logins accept `keys`.

    If callers need neither a key nor a token of an issuer there is no login. Sessions without a login are
    signed with `secret`, which all workers share.
    """

    keys: KeyRing
    meter: Meter | None = None
    now: Callable[[], float] = time.time
    has_issuer: bool = False
    secret: str = ""

    @property
    def needs_login(self) -> bool:
        return self.has_issuer or self.keys.is_needed

    @property
    def can_login(self) -> bool:
        """True if there is a key to log in with: tokens of an issuer do not open pages."""
        return self.keys.is_needed

    def login(self, token: str) -> str | None:
        """Return a new session for the holder of this key, or None if it is unknown or not for pages."""
        key = self.keys.find(token)
        if key is None or not grant_of_key(key, None).may_use(PAGES):
            return None
        return self._begun(key.name, token_digest(token))

    def why_not(self, token: str) -> str:
        """Return the reason why a known key begins no session; empty if it is unknown."""
        if self.keys.find(token) is not None:
            return f"This key is not for pages. Use a key with `{PAGES}` among its toolsets."
        reason = self.keys.why_not(token)
        return f"This key {reason}. Ask for a new one." if reason else ""

    def begin(self) -> str:
        """Return a new session without a login."""
        return self._begun(ANYBODY, self.secret)

    def grant(self, session: str) -> Grant | None:
        """Return the grant of a session, or None if it is invalid or has expired."""
        content, _, signature = session.rpartition(".")
        expiry, _, rest = content.partition(".")
        name = rest.partition(".")[2]
        if not expiry.isdecimal() or len(expiry) > 15 or int(expiry) <= self.now():
            return None
        if not self.needs_login:
            return EVERYBODY if _same(signature, _sign(self.secret, "session", content)) else None
        found = self.keys.named(name)
        if found is None:
            return None
        key, digests = found
        if not any(_same(signature, _sign(digest, "session", content)) for digest in digests):
            return None
        return grant_of_key(key, self.meter)

    def form_token(self, session: str) -> str:
        """Return the form token of a session."""
        return _sign(session, "form", "")

    def is_form_token(self, session: str, token: str) -> bool:
        return self.grant(session) is not None and _same(token, self.form_token(session))

    def _begun(self, name: str, digest: str) -> str:
        expiry = int(self.now()) + SESSION_SECONDS
        content = f"{expiry}.{secrets.token_hex(_NONCE_BYTES)}.{name}"
        return f"{content}.{_sign(digest, 'session', content)}"


def _sign(secret: str, purpose: str, content: str) -> str:
    key = hmac.digest(secret.encode(errors="surrogateescape"), b"kb pages", "sha256")
    return hmac.new(key, f"{purpose} {content}".encode(errors="surrogateescape"), hashlib.sha256).hexdigest()


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), right.encode())
