"""Drops privileges: no new ones, and of root's only reading, since a reader needs no other."""

from __future__ import annotations

import struct

from kb_readers.sandbox import kernel

_PR_SET_NO_NEW_PRIVS = 38
_CAPGET, _CAPSET = {"x86_64": 125, "aarch64": 90}, {"x86_64": 126, "aarch64": 91}
_HEADER = struct.pack("<Ii", 0x20080522, 0)  # version 3, of this thread
_SETS = struct.Struct("<6I")  # effective, permitted and inheritable, the lower halves and the upper ones
_READING = 1 << 2  # CAP_DAC_READ_SEARCH: root's packages may be in a folder private to another user


def give_up() -> None:
    """Drop the privileges of this thread. Raises NotAvailable."""
    machine = kernel.machine().name
    kernel.prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header = kernel.buffer(_HEADER)
    sets = kernel.buffer(bytes(_SETS.size))
    kernel.syscall(_CAPGET[machine], header, sets)
    effective, permitted, *_ = _SETS.unpack(sets.raw)
    kept = _SETS.pack(effective & _READING, permitted & _READING, 0, 0, 0, 0)
    kernel.syscall(_CAPSET[machine], header, kernel.buffer(kept))
