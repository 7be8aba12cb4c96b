"""The sandbox of a process that reads a file: it drops privileges, network and file system first.

    no_new_privs   no program grants it rights; of root's rights only reading remains
    landlock       it can read its own program files (`readable`), and no other part of the file system
    seccomp        system calls for reading, memory and threads only; no opening for writing

Open files stay open: the input, the report and the pipe for progress. Landlock selects the readable files;
seccomp works without it too: no sockets, no processes, no writing. Each part is used if the kernel, and a
container around it, support it; all are in Linux from 5.13 on, on x86_64 and aarch64.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec

from kb_readers.sandbox import landlock, privileges, readable, seccomp
from kb_readers.sandbox.kernel import NotAvailable

Sandboxing: TypeAlias = Literal["auto", "require", "off"]
"""Use of the sandbox: as far as available, required completely, or off."""

Part: TypeAlias = Literal["no_new_privs", "landlock", "seccomp"]
PARTS: tuple[Part, ...] = get_args(Part)
"""In the order of application: each part needs calls that the next one refuses."""


class SandboxState(msgspec.Struct, frozen=True):
    """The active parts; `missing` has the reason for each inactive `Part`."""

    holds: list[Part]
    missing: dict[str, str]


def enter(package: str) -> SandboxState:
    """Enter the sandbox with this thread, permanently, for a reader of `package`."""
    steps = {
        "no_new_privs": privileges.give_up,
        "landlock": lambda: landlock.restrict(readable.files(package)),
        "seccomp": seccomp.restrict,
    }
    holds: list[Part] = []
    missing: dict[str, str] = {}
    for part in PARTS:
        try:
            steps[part]()
        except NotAvailable as error:
            missing[part] = str(error)
        else:
            holds.append(part)
    return SandboxState(holds, missing)
