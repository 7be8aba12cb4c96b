"""The address of a PostgreSQL base, as given in a setting; its password is never printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

SCHEMES = ("postgresql", "postgres")


class NotAnAddress(ValueError):
    """The text is no address; the message says why, without quoting any part of it."""


@dataclass(frozen=True, slots=True)
class Address:
    """A checked `postgresql://user:password@host:port/database?option=value`, of one or several hosts."""

    url: str = field(repr=False)
    printed: str  # the address without the password and the options

    def __str__(self) -> str:
        return self.printed


def is_postgres(text: str) -> bool:
    """True if a setting names a PostgreSQL base."""
    return text.partition("://")[0].lower() in SCHEMES and "://" in text


def address_of(text: str) -> Address:
    """Parse the address in a setting. Raises NotAnAddress: it is malformed."""
    try:
        split = urlsplit(text)
        hosts = [urlsplit(f"//{each}") for each in split.netloc.rpartition("@")[2].split(",")]
        place = ",".join(_place(each) for each in hosts)
    except ValueError:
        # urllib's message quotes the unreadable part, which may be a part of a password.
        raise NotAnAddress("has no readable host or port; write special characters as %XX") from None
    if not is_postgres(text):
        raise NotAnAddress("does not begin with postgresql://")
    if len(split.path) < 2:
        raise NotAnAddress("names no database; write postgresql://USER:PASSWORD@HOST/DATABASE")
    if split.fragment:
        raise NotAnAddress("has a # in it; write it as %23")
    user = f"{unquote(split.username)}@" if split.username else ""
    place = place or dict(parse_qsl(split.query)).get("host", "")
    return Address(text, f"postgresql://{user}{place}{unquote(split.path)}")


def urls_of(url: str) -> list[str]:
    """Return a URL for each host in the URL of an address."""
    split = urlsplit(url)
    login, at, hosts = split.netloc.rpartition("@")
    return [url.replace(split.netloc, f"{login}{at}{host}", 1) for host in hosts.split(",")]


def _place(split: SplitResult) -> str:
    """Return host and port in printable form. Raises ValueError: the port is no number."""
    host = split.hostname or ""
    return (f"[{host}]" if ":" in host else host) + (f":{split.port}" if split.port else "")


def printable(text: str) -> str:
    """Return a setting of the store in a form that may be printed."""
    if not is_postgres(text):
        return text
    try:
        return str(address_of(text))
    except NotAnAddress:
        return "postgresql://..."
