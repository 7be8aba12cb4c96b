"""A certificate from its files: unusable files, and changes while it is in use."""

from __future__ import annotations

import logging
import os
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from kb_http.certificate import Certificate, CertificateUnusable, trusting
from tests.support.certificates import Pair, write_pair


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return write_pair(tmp_path)


def locked(key: Path) -> bytes:
    return load_pem_private_key(key.read_bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )


def test_both_sides_speak_http_1_1_over_tls_1_2_or_later(pair: Pair) -> None:
    context = Certificate(*pair).context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(pair.certificate).wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server) * 2:
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert client.selected_alpn_protocol() == server.selected_alpn_protocol() == "http/1.1"


def test_an_unusable_certificate_is_refused_with_the_file_and_the_reason(pair: Pair, tmp_path: Path) -> None:
    other = write_pair(tmp_path / "other")
    text, half, secret = tmp_path / "text", tmp_path / "half", tmp_path / "secret"
    text.write_text("no PEM")
    half.write_bytes(pair.certificate.read_bytes()[:100])
    secret.write_bytes(locked(pair.key))
    reasons = {
        (tmp_path / "none", pair.key): r"none: No such file or directory$",
        (tmp_path, pair.key): r": Is a directory$",
        (text, pair.key): r"text: holds no certificate in PEM$",
        (pair.certificate, text): r"text: holds no private key in PEM$",
        (half, pair.key): r"half and .*cannot be read",
        (pair.certificate, other.key): r"is not the key of the certificate",
        (pair.certificate, secret): r"secret: the key is locked by a password; store it without one$",
    }
    for files, reason in reasons.items():
        with pytest.raises(CertificateUnusable, match=reason):
            Certificate(*files)


def test_files_that_changed_are_read_again(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    certificate = Certificate(*pair, clock=clock)
    before = certificate.context()
    write_pair(pair.certificate.parent)
    assert certificate.context() is before, "they are looked at once a second"
    clock.now = 1.0
    caplog.set_level(logging.INFO)
    after = certificate.context()
    assert after is not before
    assert "new connections have it" in caplog.text
    clock.now = 9.0
    assert certificate.context() is after


def test_files_that_do_not_fit_change_nothing_until_they_do(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The two files are replaced one after the other."""
    clock = Clock()
    certificate = Certificate(*pair, clock=clock)
    before = certificate.context()
    new = write_pair(tmp_path / "new")
    new.certificate.replace(pair.certificate)
    for clock.now in (1.0, 2.0, 3.0):
        assert certificate.context() is before
    (line,) = caplog.messages
    assert "the one before stays" in line
    assert "is not the key of the certificate" in line
    new.key.replace(pair.key)
    clock.now = 4.0
    assert certificate.context() is not before


def test_files_that_are_gone_for_a_while_change_nothing(pair: Pair) -> None:
    clock = Clock()
    certificate = Certificate(*pair, clock=clock)
    before, away = certificate.context(), pair.key.with_name("away")
    pair.key.replace(away)
    clock.now = 1.0
    assert certificate.context() is before
    away.replace(pair.key)
    clock.now = 2.0
    assert certificate.context() is not before


def test_a_link_that_leads_elsewhere_is_a_change(tmp_path: Path) -> None:
    """Kubernetes replaces a secret this way."""
    clock, place = Clock(), tmp_path / "current"
    write_pair(tmp_path / "one")
    write_pair(tmp_path / "two")
    place.symlink_to("one")
    certificate = Certificate(place / "certificate.pem", place / "key.pem", clock=clock)
    before = certificate.context()
    (tmp_path / "next").symlink_to("two")
    os.replace(tmp_path / "next", place)  # noqa: PTH105 - replaces the link, not its target
    clock.now = 1.0
    assert certificate.context() is not before


@pytest.mark.parametrize(("name", "reason"), [("none", "No such file"), ("key.pem", "holds no certificate")])
def test_certificate_authorities_are_read_from_a_file(pair: Pair, name: str, reason: str) -> None:
    assert trusting(pair.certificate).verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(CertificateUnusable, match=reason):
        trusting(pair.key.with_name(name))
