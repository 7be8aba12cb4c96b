"""A server's certificate, reloaded when its files change, and a client's trusted authorities.

Connections keep their certificate; new ones get the current one. The files are checked when a connection
begins, at most once a second, so that an idle server does no work. Files that do not match, because one has
been replaced before the other, have no effect until they do.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_PROTOCOLS = ["http/1.1"]
_CERTIFICATE, _KEY = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----"


class CertificateUnusable(Exception):
    """A certificate cannot be used; the message is one line with the reason."""


class Certificate:
    """A certificate, followed by its chain, and its key, both in PEM."""

    def __init__(self, certificate: Path, key: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises CertificateUnusable."""
        self._files = (certificate, key)
        self._clock = clock
        self._marks = self._look()
        self._looked = clock()
        self._context = _load(certificate, key)

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a connection that begins now."""
        now = self._clock()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._read_again()
        return self._context

    def _read_again(self) -> None:
        marks = self._look()
        if marks == self._marks:
            return
        self._marks = marks
        try:
            self._context = _load(*self._files)
        except CertificateUnusable as error:
            log.warning("The certificate has changed and cannot be used; the one before stays: %s", error)
        else:
            log.info("The certificate has changed; new connections have it")

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_mark(path) for path in self._files]


def trusting(authorities: Path) -> ssl.SSLContext:
    """Return a client's TLS context that trusts these authorities only. Raises CertificateUnusable."""
    try:
        context = ssl.create_default_context(cafile=authorities)
    except ssl.SSLError as error:
        raise CertificateUnusable(f"{authorities}: holds no certificate in PEM") from error
    except OSError as error:
        raise CertificateUnusable(f"{authorities}: {error.strerror or error}") from error
    context.set_alpn_protocols(_PROTOCOLS)
    return context


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Return attributes of a file that reveal a change, even if a symbolic link points to another file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _load(certificate: Path, key: Path) -> ssl.SSLContext:
    for path, wanted, what in ((certificate, _CERTIFICATE, "certificate"), (key, _KEY, "private key")):
        try:
            text = path.read_bytes()
        except OSError as error:
            raise CertificateUnusable(f"{path}: {error.strerror or error}") from error
        if wanted not in text:
            raise CertificateUnusable(f"{path}: holds no {what} in PEM")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except _Locked as error:
        raise CertificateUnusable(f"{key}: the key is locked by a password; store it without one") from error
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        if reason == "KEY_VALUES_MISMATCH":
            raise CertificateUnusable(f"{key}: is not the key of the certificate {certificate}") from error
        raise CertificateUnusable(f"{certificate} and {key}: cannot be read ({reason})") from error
    except OSError as error:
        raise CertificateUnusable(f"{certificate} and {key}: {error.strerror or error}") from error
    return context


class _Locked(Exception):
    pass


def _no_password() -> str:
    raise _Locked  # without this, OpenSSL would ask at the terminal
