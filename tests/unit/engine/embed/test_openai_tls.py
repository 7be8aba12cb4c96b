"""An endpoint whose certificate nobody vouches for is not told the key."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from kb_engine.embed.openai.embedder import OpenAIEmbedder
from kb_engine.embed.openai.settings import OpenAISettings
from kb_engine.embed.protocol import EmbedderUnavailable
from tests.support.embedding_endpoint import (
    MODEL,
)

KEY = "sk-a-key-that-nobody-may-see"


def test_a_certificate_that_is_not_trusted_is_told(tmp_path: Path) -> None:
    """The key is not sent then."""
    with tls_server(tmp_path) as (port, seen):
        settings = {"embedding_url": f"https://127.0.0.1:{port}/v1", "embedding_model": MODEL}
        with (
            closing(OpenAIEmbedder(OpenAISettings(**settings, embedding_key=KEY))) as embedder,
            pytest.raises(EmbedderUnavailable, match="its certificate is not trusted"),
        ):
            embedder.load()
    assert KEY.encode() not in b"".join(seen)


@contextmanager
def tls_server(folder: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Speaks TLS under a certificate of its own making; what it read in the clear."""
    certificate = folder / "self-signed.pem"
    certificate.write_bytes(self_signed())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    seen: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                read(listener.accept()[0])

    def read(connection: socket.socket) -> None:
        with connection, suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
            seen.append(secure.recv(65536))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield listener.getsockname()[1], seen
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(20)


def self_signed() -> bytes:
    """A private key and a certificate for it that nobody vouches for, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    start = datetime(2020, 1, 1, tzinfo=UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=36_500))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + certificate.public_bytes(Encoding.PEM)
