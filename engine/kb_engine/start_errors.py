"""Errors at the start of an engine; each message is one line with the reason and advice.

StartError
  HomeNotWritable      the data folder cannot be created or written
  EmbedderUnknown      KB_EMBEDDER names no embedder
  RerankerUnknown      KB_RERANK_MODEL names no model
  KeysUnusable         the key file is damaged, or cannot be read
  DriverMissing        KB_STORE or VECTOR_DB_TYPE needs a package that is not installed
  CannotEncrypt        the certificate is unusable
  CannotListen         the address cannot be used
    PortInUse          the port is in use
"""

from __future__ import annotations

from kb_config.installing import install_command


class StartError(Exception):
    """The engine cannot start; the message is one line with the reason and advice."""


class HomeNotWritable(StartError):
    """The data folder cannot be created or written."""


class KeysUnusable(StartError):
    """The key file is damaged, or cannot be read."""


class EmbedderUnknown(StartError):
    """`KB_EMBEDDER` names no embedder."""


class RerankerUnknown(StartError):
    """`KB_RERANK_MODEL` names no model."""


class DriverMissing(StartError):
    """`KB_STORE` or `VECTOR_DB_TYPE` needs a package that is not installed."""

    def __init__(self, setting: str, package: str | None, extra: str) -> None:
        super().__init__(f"{setting}: needs the package {package}; install it with: {install_command(extra)}")


class CannotEncrypt(StartError):
    """The certificate is unusable."""


class CannotListen(StartError):
    """The server cannot listen on the address."""


class PortInUse(CannotListen):
    """The port is in use."""
