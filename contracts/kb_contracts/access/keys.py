"""The file of keys: who may do what, how long, and how much. Engine, server and `kb keys` have one.

    KeyFile   makes, revokes and rotates keys      `kb keys`
       │      one writer at a time, the file replaced whole
       ▼
    keys.json, mode 0600
       │      looked at on every call, read when it has changed
       ▼
    KeyRing   the key of a token                   server and engine

A token is `kb_<id>_<secret>`, of which the file has the SHA-256 alone: 256 random bits need neither salt nor
a slow hash. It is looked up by that digest, so that how long a look-up takes says nothing of other tokens.

Whoever holds a file with keys in it needs one of them, also when all have been revoked: taking the last key
away must not open the door. A file that is damaged, gone or without keys while it is in use changes nothing:
what was read last counts on, and the log says so.
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
"""The name of callers where no key is needed; no key has it."""
LOCAL = "LOCAL"
"""The name of whoever owns the data folder; no key of the file can have it."""
TOKEN = re.compile(r"\bkb_[0-9a-f]{8}_[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])")
"""What tokens look like, for those who strike them out."""

_MAX_BYTES = 4 * 1024 * 1024

KeyId = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}$(?!\n)")]
KeyName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._@-]{0,63}$(?!\n)")]
CollectionPattern = Annotated[str, Meta(min_length=1, max_length=190, pattern=r"^[^\x00-\x1f\x7f,/]+$(?!\n)")]
"""A collection's name, or the beginning of names, followed by `*`."""
Toolset = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,40}$(?!\n)")]
Most = Annotated[int, Meta(ge=0, le=2**53)]


class KeysDamaged(ValueError):
    """The file of keys cannot be used; the message says why and what to do."""


class Quotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How much a caller may do. None: as much as anybody."""

    calls_per_minute: Most | None = None
    bytes_per_day: Most | None = None
    """Of texts and files that are taken in; days are UTC's."""
    documents_per_day: Most | None = None
    uploads_in_flight: Most | None = None


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the file has of a token: its SHA-256 in hexadecimal, and how long it opens anything."""

    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    until: datetime | None = None
    """None: as long as the key does."""


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """One key. Its name is unique in the file, revoked keys included: it stands in logs for ever."""

    id: KeyId
    name: KeyName
    created: datetime
    secrets: tuple[Secret, ...] = ()
    """The newest first; others are those that a rotation has left valid for a while."""
    expires: datetime | None = None
    rights: frozenset[Right] = RIGHTS
    collections: tuple[CollectionPattern, ...] | None = None
    """None: every document, also those in no collection."""
    toolsets: tuple[Toolset, ...] | None = None
    """None: all that are served."""
    quotas: Quotas = Quotas()
    revoked: datetime | None = None

    @cached_property
    def access(self) -> Access:
        """What the engine enforces of it."""
        return Access(self.name, self.rights, reach_of(self.collections))

    def state(self, now: datetime) -> Literal["valid", "expired", "revoked"]:
        """Whether it opens anything."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "valid"


def reach_of(collections: tuple[str, ...] | None) -> Reach | None:
    """The reach of collections by name and, where one ends in `*`, by how names begin."""
    if collections is None:
        return None
    return Reach(
        frozenset(PREFIX + name for name in collections if not name.endswith("*")),
        frozenset(PREFIX + name[:-1] for name in collections if name.endswith("*")),
    )


def published_in(setting: str) -> Reach | None:
    """The reach of the collections that `KB_PUBLISHED_COLLECTIONS` names, comma-separated; empty: None.

    Raises ValueError: one is no name of a collection and no beginning of names.
    """
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
    """What the file has of a token; white space around it is dropped, for no header could carry it."""
    return hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest()


class KeyRing:
    """Finds keys by their tokens; a change of the file counts from the next call on.

    `settings` are tokens that settings give, by the variable's name; each is a key with all rights. Empty
    ones count as not set. `local` is a token with all rights that makes nobody else need one.

    Raises:
        KeysDamaged: the file is there and cannot be used.
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
        """Whether a caller needs a key at all. Where one does, that stays, whatever becomes of the file."""
        if not (self._fixed or self._keys):
            self._refresh()
        return bool(self._fixed or self._keys)

    @property
    def has_file_keys(self) -> bool:
        """Whether there are keys beside those of the settings."""
        if not self._keys:
            self._refresh()
        return bool(self._keys)

    def find(self, token: str) -> Key | None:
        """The key that this token opens; None where it is unknown, expired or revoked."""
        self._refresh()
        entry = self._entries.get(token_digest(token))
        if entry is None:
            return None
        key, until = entry
        if until is not None and until <= self._now():
            return None
        return key

    def named(self, name: str) -> tuple[Key, list[str]] | None:
        """A key by its name, with the digests of the tokens that open it now; None where none does."""
        self._refresh()
        opening = [
            (sha256, key)
            for sha256, (key, until) in self._entries.items()
            if key.name == name and (until is None or until > self._now())
        ]
        return (opening[0][1], [sha256 for sha256, _ in opening]) if opening else None

    def why_not(self, token: str) -> str:
        """What became of a token that opens nothing: it `has expired` or `was revoked`; empty: unknown."""
        key, until = self._entries.get(token_digest(token), (None, None))
        if key is None:
            return ""
        if key.revoked is not None:
            return "was revoked"
        return "has expired" if until is not None and until <= self._now() else ""

    def access_of(self, token: str) -> Access | None:
        """What the key of this token may do, as `find`; where no key is needed, everything."""
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
        self._seen = signature  # read once, whatever comes of it
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
    """What changes with the file; None where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - on every call, and half as long as by way of the path
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return str(error)
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_keys(path: Path) -> tuple[Key, ...]:
    """What the file holds, the oldest first. Raises KeysDamaged."""
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
        # The words of the error name a place and a type, never a value.
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
