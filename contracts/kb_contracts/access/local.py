"""The key of the owner of the data folder: created by the engine, read by programs beside it.

With it `kb up`, `kb stdio` and the commands use the engine of their data folder without a configured key,
even once there are keys: a user who can read the folder has the documents anyway. It is valid for that engine
only, and is sent only to the engine that announces itself in the folder.
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
    """Return the key of the engine with this data folder; create it if it does not exist.
    Raises OSError: it cannot be written or read.
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
    """Return that key, or the empty string if it does not exist or is not readable for this user."""
    with suppress(OSError, UnicodeDecodeError):
        descriptor = os.open(folder / _NAME, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(_MAX_BYTES).decode("ascii").strip()
    return ""
