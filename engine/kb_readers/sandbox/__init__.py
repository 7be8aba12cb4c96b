"""What a process that reads a file gives up before it looks at it: privileges, the network, the file system.

    no_new_privs   no program gives it rights; of root's own there remains the right to read
    landlock       of the file system it reads what it is made of (`readable`), and nothing else
    seccomp        system calls for reading, memory and threads; no other one, and no opening for writing

Files that are open before stay open: the input, the report and the pipe for progress. Landlock says which
files can be read; what seccomp says holds without it too: no sockets, no processes, nothing written. Each
part is taken where the kernel, and the container around it, have it; all of them are in Linux from 5.13 on,
on x86_64 and aarch64.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec

from kb_readers.sandbox import landlock, privileges, readable, seccomp
from kb_readers.sandbox.kernel import NotAvailable

Sandboxing: TypeAlias = Literal["auto", "require", "off"]
"""Whether files are read in it: as far as can be had, with all parts or not at all, or without."""

Part: TypeAlias = Literal["no_new_privs", "landlock", "seccomp"]
PARTS: tuple[Part, ...] = get_args(Part)
"""In the order in which they are taken: each needs what the next one would refuse."""


class SandboxState(msgspec.Struct, frozen=True):
    """Which parts hold; `missing` has the reason for each `Part` that does not."""

    holds: list[Part]
    missing: dict[str, str]


def enter(package: str) -> SandboxState:
    """Give up what this thread can, for good; threads that it starts have it no more either.

    `package` is the name of the package that will read the file.
    """
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
