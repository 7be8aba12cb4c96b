"""The address of a PostgreSQL base, as a setting names it; its password is shown to nobody."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

SCHEMES = ("postgresql", "postgres")


class NotAnAddress(ValueError):
    """The message says what is wrong, without any part of the address."""


@dataclass(frozen=True, slots=True)
class Address:
    """`postgresql://user:password@host:port/database?option=value`, checked."""

    url: str = field(repr=False)
    printed: str
    """Without the password and the options."""

    def __str__(self) -> str:
        return self.printed


def is_postgres(text: str) -> bool:
    """Whether a setting names a PostgreSQL base."""
    return text.partition("://")[0].lower() in SCHEMES and "://" in text


def address_of(text: str) -> Address:
    """The address in a setting.

    Raises:
        NotAnAddress: it cannot be one.
    """
    try:
        split = urlsplit(text)
        port = split.port
    except ValueError:
        # The message of urllib quotes what it could not read, and that may be a part of a password.
        raise NotAnAddress("has no readable host or port; write special characters as %XX") from None
    if not is_postgres(text):
        raise NotAnAddress("does not begin with postgresql://")
    if len(split.path) < 2:
        raise NotAnAddress("names no database; write postgresql://USER:PASSWORD@HOST/DATABASE")
    if split.fragment:
        raise NotAnAddress("has a # in it; write it as %23")
    user = f"{unquote(split.username)}@" if split.username else ""
    host = split.hostname or dict(parse_qsl(split.query)).get("host", "")
    place = f"[{host}]" if ":" in host else host
    without_password = f"postgresql://{user}{place}{f':{port}' if port else ''}{unquote(split.path)}"
    return Address(text, without_password)


def printable(text: str) -> str:
    """A setting of the store as it may be printed."""
    if not is_postgres(text):
        return text
    try:
        return str(address_of(text))
    except NotAnAddress:
        return "postgresql://..."
