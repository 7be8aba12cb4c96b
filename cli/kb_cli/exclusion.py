"""Files of a folder that never enter a base: links out of the folder, private keys and credentials.

A file that the user names itself is not checked.
"""

from __future__ import annotations

import re
from pathlib import Path

LEADS_OUT = "it leads out of the folder by a link"
HOLDS_CREDENTIALS = "it holds a private key or credentials; to add it, name the file itself"

_NAMES = re.compile(
    r"id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?|credentials(?:\.(?:json|ini|toml|ya?ml|xml|csv|txt))?|"
    r"\.?(?:netrc|pgpass|htpasswd|npmrc|pypirc)|(?:.*\.)?env|.*\.(?:pem|key|p12|pfx|ppk|jks|keystore|kdbx)",
    re.IGNORECASE,
)
_PRIVATE_KEY = re.compile(
    rb"\s*(?:-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY|PuTTY-User-Key-File|"
    rb'\{[^{}]{0,2000}"private_key"\s{0,9}:\s{0,9}"-----BEGIN)'
)
HEAD_BYTES = 4096


def exclusion(file: Path, root: Path) -> str | None:
    """Return the reason for leaving out a file of a folder, or None; `root` is the folder without links.
    Raises OSError: the file cannot be read.
    """
    if not file.resolve().is_relative_to(root):
        return LEADS_OUT
    if is_named_as_credentials(file.name):
        return HOLDS_CREDENTIALS
    with file.open("rb") as content:
        return HOLDS_CREDENTIALS if begins_as_key(content.read(HEAD_BYTES)) else None


def is_named_as_credentials(name: str) -> bool:
    """True if files of this name hold private keys or credentials."""
    return _NAMES.fullmatch(name) is not None


def begins_as_key(head: bytes) -> bool:
    """True if a file with these first `HEAD_BYTES` is a private key."""
    return _PRIVATE_KEY.match(head) is not None
