"""Checks shared by the settings of endpoints: URL and key. Importing this imports no client."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from kb_config.settings import SettingsError


def check_url(variable: str, url: str, *, key_variable: str, example: str) -> None:
    """Raise SettingsError unless this is an http or https URL without user, password, query and fragment.

    The message does not repeat the URL, which may hold a password.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        usable = parts.scheme in {"http", "https"} and host and "%" not in host and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isprintable() or " " in url:
        raise SettingsError(f"{variable}: is no http or https URL; write it like {example}")
    if parts.username is not None or parts.password is not None:
        raise SettingsError(f"{variable}: holds a user or a password; put the key into {key_variable}")
    if parts.query or parts.fragment:
        raise SettingsError(f"{variable}: ends in a query or a fragment; give the base URL alone")


def check_key(variable: str, key: str) -> None:
    """Raise SettingsError if a header cannot hold the key; the message does not repeat it."""
    if not (key.isascii() and key.isprintable()):
        raise SettingsError(f"{variable}=(secret): has a sign that no key has, such as a line's end")


def key_warnings(url_variable: str, url: str, key_variable: str, key: str) -> Iterator[str]:
    """Yield a warning if the key is sent unencrypted to another machine."""
    parts = urlsplit(url)
    try:
        local = ip_address(parts.hostname or "").is_loopback
    except ValueError:
        local = parts.hostname == "localhost"
    if key and parts.scheme == "http" and not local:
        yield f"{key_variable} is sent without encryption; give {url_variable} with https"
