"""Certificates for tests of TLS."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

LOOPBACK = "127.0.0.1"


def self_signed(host: str | None = None) -> bytes:
    """Return a private key and a self-signed certificate of `host` (by default 127.0.0.1), in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, LOOPBACK)])
    start = datetime(2020, 1, 1, tzinfo=UTC)
    owner = x509.IPAddress(ip_address(LOOPBACK)) if host is None else x509.DNSName(host)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName([owner]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + certificate.public_bytes(Encoding.PEM)


class Pair(NamedTuple):
    """Paths of two PEM files."""

    certificate: Path
    key: Path


def write_pair(folder: Path) -> Pair:
    """Write a new `key.pem` and `certificate.pem` of 127.0.0.1 to `folder`, which is created if missing."""
    folder.mkdir(exist_ok=True)
    pair = Pair(folder / "certificate.pem", folder / "key.pem")
    key, mark, certificate = self_signed().partition(b"-----BEGIN CERTIFICATE-----")
    pair.certificate.write_bytes(mark + certificate)
    pair.key.write_bytes(key)
    return pair
