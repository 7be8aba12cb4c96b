"""A page or a file of the web, for `kb add`: fetched by this machine, but not from inside its own network.

    URL ─▶ resolve its addresses once ─▶ all of the internet? ─▶ connect to one of them ─▶ a file
             ▲                                                      │
             └────────────── a redirect, at most five ──────────────┘

A page may redirect to a router, a metadata service or a program on loopback, and a name may resolve to
another address each time. So each URL is checked, and the connection goes to the checked address.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

import httpx

from kb_contracts.api import formats

Address: TypeAlias = IPv4Address | IPv6Address
Resolve: TypeAlias = Callable[[str, int], Sequence[Address]]

MOST_BYTES = 100 * 1024 * 1024
LARGEST_PAGE = 8 * 1024 * 1024
"""Maximum size of a page that is reduced to its main text, in bytes."""
MOST_REDIRECTS = 5
MOST_SECONDS = 120.0
"""Time for one URL in seconds, from its first connection to its last byte, redirects included."""

NOT_REACHED = (httpx.ConnectError, httpx.ConnectTimeout)
"""Failures after which the next address of a host is tried."""

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_READING_SECONDS = 20.0
_AGENT = "kb-add"
_LONGEST_NAME = 150
_LONGEST_VALIDATOR = 1_000
_TRANSLATED = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NOT_GLOBAL = tuple(
    IPv4Network(each)
    for each in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
        "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    )
)  # fmt: skip
_NOT_GLOBAL_6 = tuple(IPv6Network(each) for each in ("2001::/23", "2001:db8::/32", "3fff::/20"))
"""With `_NOT_GLOBAL`, the special-purpose registries of IANA, except for globally reachable rows."""
_VALIDATORS = {"ETag": "If-None-Match", "Last-Modified": "If-Modified-Since"}
"""Headers of a response with the headers that make a later request conditional."""
_BY_TYPE = {each.mime_type: each.extensions[0] for each in formats.FORMATS.values()}
_TYPES = {
    **_BY_TYPE,
    "application/xhtml+xml": ".html",
    "application/x-yaml": ".yaml",
    "text/yaml": ".yaml",
    "text/x-markdown": ".md",
    "text/javascript": ".js",
}
_UNSPECIFIC = frozenset(["", "application/octet-stream", "binary/octet-stream", "text/plain"])
_UTF_8 = frozenset(["", "utf-8", "utf8", "us-ascii", "ascii"])


class NotFetched(Exception):
    """There is no file; the message is one sentence with the reason."""


class NotModified(NotFetched):
    """The conditions of the request hold: the file is the one that is known."""


class NotSupported(NotFetched):
    """The file is of a type that kb does not read."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetched file; `conditions` are the headers that ask later whether it has changed."""

    path: Path
    conditions: Mapping[str, str]


def is_of_the_internet(address: Address) -> bool:
    """True if an address is of the public internet; one that contains an IPv4 address is judged by that."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_GLOBAL)
    inner = address.ipv4_mapped or address.sixtofour
    if address in _TRANSLATED:
        inner = IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is not None:
        return is_of_the_internet(inner)
    return address in _GLOBAL_UNICAST and not any(address in network for network in _NOT_GLOBAL_6)


def address_rule(*, private: bool) -> Callable[[Address], bool]:
    """Return the test of an allowed address: every one with `private`, else those of the public internet."""
    return (lambda _: True) if private else is_of_the_internet


def addresses_of(host: str, port: int) -> Sequence[Address]:
    """Return the addresses of a host, as resolved by this machine. Raises NotFetched: there is no address."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotFetched(f"{host} is not known: {error}") from error
    return list(dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))


def allowed_addresses(
    host: str,
    port: int,
    is_allowed: Callable[[Address], bool] = is_of_the_internet,
    resolve: Resolve = addresses_of,
) -> Sequence[Address]:
    """Return the addresses of a host. Raises NotFetched: there is none, or one of them is not allowed."""
    found = resolve(host, port)
    for address in found:
        if not is_allowed(address):
            name = host if host == str(address) else f"{host} ({address})"
            raise NotFetched(f"{name} is not a public address; --private allows such addresses")
    return found


def fetch(
    url: str,
    folder: Path,
    *,
    is_allowed: Callable[[Address], bool] = is_of_the_internet,
    resolve: Resolve = addresses_of,
    trust: ssl.SSLContext | None = None,
    conditions: Mapping[str, str] | None = None,
    name: str = "",
) -> Fetched:
    """Fetch a URL into a file of `folder`, whose extension is that of its format. Blocks.

    `trust` holds the trusted certificates; by default those of the web. `conditions` are those of an earlier
    fetch. A file with a given `name` may be of any type, and is saved as it was sent.

    Raises:
        NotModified: the conditions hold.
        NotFetched: with the reason.
    """

    async def fetched() -> Fetched:
        place = parsed(url)
        # A proxy would resolve the names itself.
        headers = {"User-Agent": _AGENT, **(conditions or {})}
        try:
            async with (
                asyncio.timeout(MOST_SECONDS),
                httpx.AsyncClient(
                    trust_env=False, timeout=_TIMEOUT, headers=headers, verify=trust or _certificates()
                ) as client,
            ):
                for _ in range(MOST_REDIRECTS + 1):
                    port = place.port or (443 if place.scheme == "https" else 80)
                    found = allowed_addresses(place.host, port, is_allowed, resolve)
                    following = await _fetch_once(client, place, found, folder, name)
                    if isinstance(following, Fetched):
                        return following
                    place = following
        except TimeoutError:
            raise NotFetched(f"it takes more than {MOST_SECONDS:g} seconds") from None
        raise NotFetched(f"it redirects more than {MOST_REDIRECTS} times")

    return asyncio.run(fetched())


def reduce_to_main_text(path: Path) -> str | None:
    """Leave navigation and footers out of a file of HTML, and return a remark on the words left out.

    Return None without a change for other files, for pages of more than `LARGEST_PAGE` bytes, pages that
    cannot be read within `_READING_SECONDS`, and where the whole page is kept.
    """
    if path.suffix not in formats.FORMATS["html"].extensions or path.stat().st_size > LARGEST_PAGE:
        return None
    # The tokenizer's time is quadratic for some broken pages, and cannot be bounded in this process.
    command = [sys.executable, "-I", "-m", "kb_readers.article", str(path)]
    try:
        done = subprocess.run(  # noqa: S603 - a module of this project
            command, capture_output=True, timeout=_READING_SECONDS, check=True, text=True
        )
    except (OSError, subprocess.SubprocessError):
        return None  # the engine reads the whole page, or reports the reason
    words, left_out = map(int, done.stdout.split())
    if not left_out:
        return None
    return (
        f"{left_out:,} of {words:,} words of the page left out, such as navigation; --whole-page keeps them"
    )


@cache
def _certificates() -> ssl.SSLContext:
    """The certificates of the web, loaded once for all URLs."""
    return httpx.create_ssl_context(trust_env=False)


def parsed(url: str, base: httpx.URL | None = None) -> httpx.URL:
    """Return the parsed URL, which may be relative to `base`. Raises NotFetched: it cannot be fetched."""
    try:
        place = httpx.URL(url) if base is None else base.join(url)
        host, port = place.host, place.port
    except (httpx.InvalidURL, ValueError) as error:  # idna's errors are ValueErrors
        raise NotFetched(f"{url[:200]} is no URL: {error}") from error
    if place.scheme not in ("http", "https") or not host or port == 0:
        raise NotFetched(f"it leads to {str(place)[:200]}, which is no http:// or https:// URL")
    if place.userinfo:
        raise NotFetched("it contains a user name or a password; pages with a login are not fetched")
    return place.copy_with(fragment=None)


async def _fetch_once(
    client: httpx.AsyncClient, place: httpx.URL, addresses: Sequence[Address], folder: Path, name: str
) -> Fetched | httpx.URL:
    """Return the file from the first of the addresses that is reached, or the target of a redirect."""
    reason = f"{place.host} has no address"
    for address in addresses:
        request = client.build_request(
            "GET",
            place.copy_with(host=str(address)),
            headers={"Host": place.netloc.decode("ascii")},
            extensions={"sni_hostname": place.raw_host.decode("ascii")},
        )
        try:
            response = await client.send(request, stream=True)
        except NOT_REACHED as error:
            reason = f"{place.host} is not reached: {_words(error)}"
            continue
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            ValueError,
        ) as error:  # httpx parses the target of a redirect
            raise NotFetched(f"{place.host} gives no usable response: {_words(error)}") from error
        try:
            if response.has_redirect_location:
                return parsed(response.headers["Location"], place)
            if response.status_code == httpx.codes.NOT_MODIFIED:
                raise NotModified(f"{place.host} has no newer version")
            if not response.is_success:
                raise NotFetched(f"{place.host} answers {response.status_code}")
            path = await _saved(response, place, folder, name)
            return Fetched(path, _conditions(response.headers))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NotFetched(f"its answer broke off: {_words(error)}") from error
        finally:
            await response.aclose()
    raise NotFetched(reason)


def _conditions(headers: httpx.Headers) -> dict[str, str]:
    found = {to: headers.get(header, "") for header, to in _VALIDATORS.items()}
    return {
        to: value for to, value in found.items() if value.isascii() and 0 < len(value) <= _LONGEST_VALIDATOR
    }


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


async def _saved(response: httpx.Response, place: httpx.URL, folder: Path, name: str) -> Path:
    content_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    path = folder / (name or _name(place, content_type))
    size = 0
    with path.open("wb") as file:
        async for block in response.aiter_bytes():
            size += len(block)
            if size > MOST_BYTES:
                raise NotFetched(f"it has more than {MOST_BYTES >> 20} MiB")
            file.write(block)
    encoding = (response.charset_encoding or "").lower()
    if not name and content_type.startswith("text/") and encoding not in _UTF_8:
        _reencode(path, encoding)
    return path


def _reencode(path: Path, encoding: str) -> None:
    """Convert to UTF-8 with a BOM, which overrides the encoding declared in the text, as the header does."""
    try:
        text = path.read_bytes().decode(encoding)
    except (LookupError, UnicodeDecodeError) as error:
        raise NotFetched(f"it is not valid {encoding[:40]}, the encoding in its header") from error
    path.write_bytes(text.encode("utf-8-sig"))


def _name(place: httpx.URL, content_type: str) -> str:
    """Return the last part of the path, with the extension of its content type."""
    last = unquote(place.path.rstrip("/").rpartition("/")[2])
    last = "".join(each for each in last if each.isprintable() and each not in "/\\").strip(". ")
    name = Path(last or place.host)
    ending = _TYPES.get(content_type)
    if content_type in _UNSPECIFIC:
        with suppress(formats.UnsupportedFormat):
            formats.format_of(name.name)
            ending = name.suffix
    if ending is None:
        raise NotSupported(f"it is of the type {content_type[:80] or 'unknown'}, which is not supported")
    stem = name.name.removesuffix(name.suffix) if name.suffix.lower() == ending.lower() else name.name
    return f"{stem[:_LONGEST_NAME]}{ending}"
