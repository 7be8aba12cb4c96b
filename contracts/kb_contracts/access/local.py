"""The key of whoever owns the data folder: made by the engine, read by what runs beside it.

`kb up`, `kb stdio` and the commands use the engine of their data folder without anybody giving them a key,
also once there are keys: who reads the folder has the documents anyway. It opens that engine alone, and is
sent to nobody but the engine that announces itself in the folder.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

_NAME = "local.key"
_PRIVATE = 0o600
_MAX_BYTES = 200


def make_local_token(folder: Path) -> str:
    """The key of the engine whose folder this is, made where there is none.

    Raises:
        OSError: it cannot be written or read.
    """
    if token := local_token(folder):
        return token
    path = folder / _NAME
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _PRIVATE)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"kb_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}")
    return local_token(folder)


def local_token(folder: Path) -> str:
    """That key; empty where there is none, or not for this user."""
    with suppress(OSError, UnicodeDecodeError):
        descriptor = os.open(folder / _NAME, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(_MAX_BYTES).decode("ascii").strip()
    return ""
