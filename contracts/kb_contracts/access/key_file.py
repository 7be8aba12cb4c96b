"""Creates, revokes and rotates keys: one writer at a time, and the file is replaced atomically."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import cast

import msgspec

from kb_contracts.access.keys import (
    ANYBODY,
    Key,
    KeysInFile,
    Quotas,
    Secret,
    now_utc,
    read_keys,
    token_digest,
)
from kb_contracts.access.reach import MAX_ACCESS_BYTES, RIGHTS, Right, access_header

PRIVATE = 0o600
"""Mode of the key file: accessible to its owner only."""


class KeyRefused(ValueError):
    """A change of the key file is refused; the message has the reason."""


class KeyFile:
    """Changes the key file. All methods raise `KeysDamaged`, `KeyRefused` and OSError."""

    def __init__(self, path: Path, *, now: Callable[[], datetime] = now_utc) -> None:
        self.path = path
        self._now = now

    def read(self) -> tuple[Key, ...]:
        """Return all keys, the oldest first; empty if there is no file."""
        return read_keys(self.path) if self.path.exists() else ()

    def create(
        self,
        name: str,
        *,
        rights: frozenset[Right],
        expires: datetime | None = None,
        collections: tuple[str, ...] | None = None,
        toolsets: tuple[str, ...] | None = None,
        quotas: Quotas = Quotas(),  # noqa: B008 - immutable
    ) -> tuple[Key, str]:
        """Create a key and return it with its token, which is not stored."""
        with self._changed() as keys:
            if any(key.name == name for key in keys) or name == ANYBODY:
                raise KeyRefused(
                    f"There is, or was, a key {name!r}. Choose another name, or rotate that one."
                )
            id_ = _new_id(keys)
            token, secret = _new_token(id_)
            key = Key(id_, name, self._now(), (secret,), expires, rights, collections, toolsets, quotas)
            keys.append(_checked(key))
        return key, token

    def revoke(self, which: str) -> Key:
        """Revoke the key of this name or id. It stays in the file, so that its name is not used again."""
        with self._changed() as keys:
            place = _place(keys, which)
            key = keys[place]
            if key.revoked is None:
                key = keys[place] = msgspec.structs.replace(key, revoked=self._now(), secrets=key.secrets[:1])
        return key

    def rotate(self, which: str, grace: timedelta = timedelta()) -> tuple[Key, str]:
        """Create a new token for a key; the old one remains valid for `grace`."""
        with self._changed() as keys:
            place = _place(keys, which)
            key = keys[place]
            if (state := key.state(self._now())) != "valid":
                raise KeyRefused(f"The key {key.name!r} is {state}: make a new one.")
            token, secret = _new_token(key.id)
            ends = self._now() + grace
            old = [
                msgspec.structs.replace(each, until=ends if each.until is None else min(each.until, ends))
                for each in key.secrets
                if grace and (each.until is None or each.until > self._now())
            ]
            key = keys[place] = msgspec.structs.replace(key, secrets=(secret, *old))
        return key, token

    @contextmanager
    def _changed(self) -> Iterator[list[Key]]:
        """Yield the keys, to be changed in place; they are written if the block ends without an error."""
        path = self.path.resolve()  # replace the target of a link, not the link
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = list(self.read())
            yield keys
            _replace(path, msgspec.json.format(msgspec.json.encode(KeysInFile(keys))) + b"\n")
        finally:
            os.close(lock)


def _place(keys: list[Key], which: str) -> int:
    found = [place for place, key in enumerate(keys) if which in (key.name, key.id)]
    if not found:
        raise KeyRefused(f"There is no key {which!r}; `kb keys list` has them all.")
    return found[0]


def _new_id(keys: list[Key]) -> str:
    taken = {key.id for key in keys} | {key.name for key in keys}
    while (id_ := secrets.token_hex(4)) in taken:
        pass
    return id_


def _new_token(id_: str) -> tuple[str, Secret]:
    token = f"kb_{id_}_{secrets.token_urlsafe(32)}"
    return token, Secret(token_digest(token))


def _checked(key: Key) -> Key:
    try:
        msgspec.convert(msgspec.to_builtins(key), Key)
    except msgspec.ValidationError as error:
        raise KeyRefused(
            f"{error}. A name is up to 64 lower-case letters, digits, dots, hyphens, underscores and @."
        ) from error
    if not key.rights:
        raise KeyRefused(f"A key needs a right: {', '.join(sorted(RIGHTS))}.")
    if len(access_header(key.access)) > MAX_ACCESS_BYTES:
        raise KeyRefused("These are more collections than fit into a request: use beginnings of names.")
    if any("*" in name[:-1] for name in key.collections or ()):
        raise KeyRefused("In the name of a collection `*` may stand at the end alone.")
    return key


def _replace(path: Path, content: bytes) -> None:
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            os.fchmod(file.fileno(), PRIVATE)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)  # noqa: PTH105 - the file's own name is a text
        except BaseException:
            os.unlink(file.name)  # noqa: PTH108
            raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def rights_of(names: Iterable[str]) -> frozenset[Right]:
    """Return rights by their names. Raises KeyRefused: a name is unknown."""
    if unknown := set(names) - RIGHTS:
        raise KeyRefused(f"{sorted(unknown)[0]!r} is no right; there are {', '.join(sorted(RIGHTS))}.")
    return cast("frozenset[Right]", frozenset(names))
