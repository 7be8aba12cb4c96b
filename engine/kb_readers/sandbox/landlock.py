"""Landlock: only listed files can be opened, and nothing in the file system can be changed.

Newer versions of its kernel interface add rights: truncation (3), the network (4), devices (5), signals and
abstract sockets (6). All rights that the running kernel knows are refused; see `landlock(7)`.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress

from kb_readers.sandbox import kernel
from kb_readers.sandbox.readable import Readable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on all processors
_VERSION = 1  # the flag for querying it
_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NET_RIGHTS = {4: 0b11}  # TCP bind and connect
_SCOPES = {6: 0b11}  # abstract sockets and signals outside of the sandbox
_ATTRIBUTE_BYTES = {1: 8, 4: 16, 6: 24}
_RULE = struct.Struct("<Qi")


def restrict(readable: Iterable[Readable]) -> None:
    """Restrict this thread to reading these files and folders. Raises NotAvailable."""
    kernel.machine()
    version = kernel.syscall(_CREATE_RULESET, 0, 0, _VERSION)
    attribute = struct.pack(
        "<3Q", *(_newest(table, version) for table in (_FILE_RIGHTS, _NET_RIGHTS, _SCOPES))
    )
    size = _newest(_ATTRIBUTE_BYTES, version)
    ruleset = kernel.syscall(_CREATE_RULESET, kernel.buffer(attribute[:size]), size, 0)
    try:
        for each in readable:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                _allow(ruleset, each)
        kernel.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _newest(table: dict[int, int], version: int) -> int:
    return max((value for since, value in table.items() if since <= version), default=0)


def _allow(ruleset: int, readable: Readable) -> None:
    opened = os.open(readable.path, os.O_PATH | os.O_CLOEXEC)
    try:
        is_folder = stat.S_ISDIR(os.fstat(opened).st_mode)
        rights = (_READ_DIR if is_folder else 0) | (0 if readable.names_only else _READ_FILE)
        if rights:
            kernel.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, kernel.buffer(_RULE.pack(rights, opened)), 0)
    finally:
        os.close(opened)
