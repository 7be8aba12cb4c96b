"""The key file: callers with their rights, expiry and quotas. Engine, server and `kb keys` share one.

    KeyFile   creates, revokes and rotates keys    `kb keys`
       │      one writer at a time, the file replaced atomically
       ▼
    keys.json, mode 0600
       │      checked on every call, read again after a change
       ▼
    KeyRing   the key of a token                   server and engine

A token is `kb_<id>_<secret>`. The file holds only its SHA-256: 256 random bits need neither salt nor a slow
hash. A token is looked up by that digest, so that the time of a look-up reveals nothing about other tokens.

If the file has keys, every caller needs one, even when all have been revoked: removing the last key must not
open access. A file that becomes damaged, is deleted or loses its keys while in use has no effect: the last
valid state stays in force, and the log reports it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kb_contracts.access.reach import EVERYTHING, RIGHTS, Access, Reach, Right
from kb_contracts.api.ragler import PREFIX

logger = logging.getLogger(__name__)

ANYBODY = "anonymous"
"""The name of callers if no key is needed; no key has it."""
LOCAL = "LOCAL"
"""The name of the owner of the data folder; no key of the file can have it."""
TOKEN = re.compile(r"\bkb_[0-9a-f]{8}_[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])")
"""Pattern of tokens, for redacting them."""

_MAX_BYTES = 4 * 1024 * 1024

KeyId = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}$(?!\n)")]
KeyName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._@-]{0,63}$(?!\n)")]
CollectionPattern = Annotated[str, Meta(min_length=1, max_length=190, pattern=r"^[^\x00-\x1f\x7f,/]+$(?!\n)")]
"""A collection's name, or a prefix of names, followed by `*`."""
Toolset = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,40}$(?!\n)")]
Most = Annotated[int, Meta(ge=0, le=2**53)]


class KeysDamaged(ValueError):
    """The key file cannot be used; the message has the reason and advice."""


class Quotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of a caller. None: the general limit."""

    calls_per_minute: Most | None = None
    bytes_per_day: Most | None = None
    """Size of ingested texts and files; a day is a UTC day."""
    documents_per_day: Most | None = None
    uploads_in_flight: Most | None = None


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The stored form of a token: its SHA-256 in hexadecimal, and its expiry."""

    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    until: datetime | None = None
    """None: valid as long as the key."""


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """One key. Its name is unique in the file, revoked keys included, since logs refer to it."""

    id: KeyId
    name: KeyName
    created: datetime
    secrets: tuple[Secret, ...] = ()
    """The newest first; further ones remain valid for a while after a rotation."""
    expires: datetime | None = None
    rights: frozenset[Right] = RIGHTS
    collections: tuple[CollectionPattern, ...] | None = None
    """None: every document, including documents in no collection."""
    toolsets: tuple[Toolset, ...] | None = None
    """None: all served toolsets."""
    quotas: Quotas = Quotas()
    revoked: datetime | None = None

    @cached_property
    def access(self) -> Access:
        """The access that the engine enforces for it."""
        return Access(self.name, self.rights, reach_of(self.collections))

    def state(self, now: datetime) -> Literal["valid", "expired", "revoked"]:
        """Return the validity of the key."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "valid"


def reach_of(collections: tuple[str, ...] | None) -> Reach | None:
    """Return the access scope of collections, by name or, if a name ends in `*`, by prefix."""
    if collections is None:
        return None
    return Reach(
        frozenset(PREFIX + name for name in collections if not name.endswith("*")),
        frozenset(PREFIX + name[:-1] for name in collections if name.endswith("*")),
    )


def published_in(setting: str) -> Reach | None:
    """Return the scope of `KB_PUBLISHED_COLLECTIONS`, or None if empty. Raises ValueError."""
    names = [name for each in setting.split(",") if (name := each.strip())]
    if not names:
        return None
    try:
        return reach_of(msgspec.convert(names, tuple[CollectionPattern, ...]))
    except msgspec.ValidationError as error:
        raise ValueError("takes names of collections, and beginnings of names followed by *") from error


class KeysInFile(msgspec.Struct, forbid_unknown_fields=True):
    """The file as JSON."""

    keys: list[Key]
    version: Literal[1] = 1


def now_utc() -> datetime:
    return datetime.now(UTC)


@lru_cache(maxsize=1024)
def token_digest(token: str) -> str:
    """Return the stored digest of a token; white space around it is dropped, for no header could carry it."""
    return hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest()


class KeyRing:
    """Finds keys by their tokens; a change of the file takes effect from the next call on.

    `settings` are tokens from settings, by the variable's name; each is a key with all rights. Empty ones
    count as not set. `local` is a token with all rights that does not make keys mandatory for other callers.
    Raises KeysDamaged: the file exists and cannot be used.
    """

    def __init__(
        self,
        path: Path | None,
        settings: Mapping[str, str] | None = None,
        *,
        local: str = "",
        now: Callable[[], datetime] = now_utc,
    ) -> None:
        self._path = path
        self._now = now
        self._fixed = [
            Key("", name, now(), (Secret(token_digest(token)),))
            for name, token in (settings or {}).items()
            if token.strip()
        ]
        self._local = [Key("", LOCAL, now(), (Secret(token_digest(local)),))] if local else []
        self._seen = None if path is None else _signature_of(path)
        self._take(() if path is None or self._seen is None else read_keys(path))

    @property
    def is_needed(self) -> bool:
        """True if callers need a key. Once true it stays true, regardless of later changes of the file."""
        if not (self._fixed or self._keys):
            self._refresh()
        return bool(self._fixed or self._keys)

    @property
    def has_file_keys(self) -> bool:
        """True if the file has keys."""
        if not self._keys:
            self._refresh()
        return bool(self._keys)

    def find(self, token: str) -> Key | None:
        """Return the key of this token, or None if it is unknown, expired or revoked."""
        self._refresh()
        entry = self._entries.get(token_digest(token))
        if entry is None:
            return None
        key, until = entry
        if until is not None and until <= self._now():
            return None
        return key

    def named(self, name: str) -> tuple[Key, list[str]] | None:
        """Return a key by its name, with the digests of its valid tokens; None if no token is valid."""
        self._refresh()
        opening = [
            (sha256, key)
            for sha256, (key, until) in self._entries.items()
            if key.name == name and (until is None or until > self._now())
        ]
        return (opening[0][1], [sha256 for sha256, _ in opening]) if opening else None

    def why_not(self, token: str) -> str:
        """Return the reason for an invalid token: `has expired` or `was revoked`; empty if it is unknown."""
        key, until = self._entries.get(token_digest(token), (None, None))
        if key is None:
            return ""
        if key.revoked is not None:
            return "was revoked"
        return "has expired" if until is not None and until <= self._now() else ""

    def access_of(self, token: str) -> Access | None:
        """Return the access of this token's key, as `find`; full access if no key is needed."""
        key = self.find(token)
        if key is not None:
            return key.access
        return None if self._keys or self._fixed else EVERYTHING

    def _take(self, keys: tuple[Key, ...]) -> None:
        self._keys = keys
        self._entries = {
            secret.sha256: (key, _end(key, secret))
            for key in (*self._fixed, *self._local, *keys)
            for secret in key.secrets
        }

    def _refresh(self) -> None:
        if self._path is None:
            return
        signature = _signature_of(self._path)
        if signature == self._seen:
            return
        self._seen = signature  # read once, even if it is damaged
        if signature is None:
            logger.error(
                "The file of keys is gone: its last state counts on", extra={"file": str(self._path)}
            )
            return
        try:
            keys = read_keys(self._path)
            if self._keys and not keys:
                raise KeysDamaged(
                    f"{self._path} holds no keys any more. Put them back, or start again to go on without."
                )
            self._take(keys)
        except KeysDamaged as error:
            logger.error("The file of keys is damaged: its last state counts on. %s", error)
            return
        logger.info("read the file of keys", extra={"keys": len(self._keys)})


_PAST = datetime.min.replace(tzinfo=UTC)


def _end(key: Key, secret: Secret) -> datetime | None:
    if key.revoked is not None:
        return _PAST
    ends = [end for end in (key.expires, secret.until) if end is not None]
    return min(ends) if ends else None


def _signature_of(path: Path) -> object:
    """Return a value that changes with the file, or None if there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - on every call, and half as long as by way of the path
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return str(error)
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys of the file, the oldest first. Raises KeysDamaged."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise KeysDamaged(f"{path} cannot be read: {error.strerror}.") from error
    if len(raw) > _MAX_BYTES:
        raise KeysDamaged(f"{path} is larger than {_MAX_BYTES} bytes.")
    try:
        keys = tuple(msgspec.json.decode(raw, type=KeysInFile).keys)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The error message names a place and a type, never a value.
        raise KeysDamaged(
            f"{path} is no file of keys: {error}. Put a copy of it back, or remove it and make new keys."
        ) from error
    for key in keys:
        times = (key.created, key.expires, key.revoked, *(secret.until for secret in key.secrets))
        if any(time is not None and time.tzinfo is None for time in times):
            raise KeysDamaged(f"{path}: a time of the key {key.name!r} has no zone; write Z after it.")
    unique = {
        "id": [key.id for key in keys],
        "name": [key.name for key in keys],
        "secret": [secret.sha256 for key in keys for secret in key.secrets],
    }
    for what, values in unique.items():
        if len(set(values)) < len(values):
            raise KeysDamaged(f"{path}: two keys have the same {what}.")
    return keys
