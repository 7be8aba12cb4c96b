"""Why a base cannot be opened. Each message is for the person who starts the engine.

BaseRefused
├── BaseInUse          another process owns the base
├── BaseLinked         its file has a second name
├── BaseUnreachable    the server of the base does not answer, or lets nobody in
├── BaseUnwritable     the folder or the file cannot be written
├── NotABase           it is no SQLite file or no PostgreSQL with pgvector, is damaged, or another program's
├── BaseTooNew         a later version of the engine has written it
└── EmbedderMismatch   another embedder filled it
"""

from __future__ import annotations

from pathlib import Path

from kb_engine.address import Address
from kb_engine.store.port import EmbedderIdentity

Place = Path | Address
"""Where a base lies."""

UNLIKE_ITS_NUMBER = "its layout is not what its number says"


class BaseRefused(Exception):
    """The base at `path` cannot be opened; the message says why and what to do."""

    def __init__(self, path: Place, why: str) -> None:
        # One line: it stands in a log, and what a server says of its fault may have several.
        super().__init__(" ".join(f"The base {path} cannot be opened: {why}".splitlines()))
        self.path = path


class BaseInUse(BaseRefused):
    """One process owns a base; `pid` is its number where it left one."""

    def __init__(self, path: Path, pid: int | None) -> None:
        owner = f"process {pid}" if pid else "another process"
        super().__init__(path, f"{owner} is using it. Stop that process or name another base.")
        self.pid = pid


class BaseLinked(BaseRefused):
    """Its file has a second name, a hard link. SQLite keeps its log beside the one that it is opened by."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            "its file has more than one name (a hard link), and its last changes may lie beside another one. "
            "Remove the other names; where one has a file beside it that ends in `-wal`, keep that one.",
        )


class BaseUnreachable(BaseRefused):
    """Its server is down, out of reach, or does not know the user or the database."""


class BaseUnwritable(BaseRefused):
    """The operating system or the server refuses to create or write it."""


class NotABase(BaseRefused):
    """What lies there is not (or no longer) a base."""


class BaseTooNew(BaseRefused):
    """Its layout has a higher number than this engine knows; nothing was changed."""

    def __init__(self, path: Place, found: int, known: int) -> None:
        super().__init__(
            path,
            f"its layout has version {found}, this engine knows {known} at the most. "
            "Start it with the engine that wrote it, or a later one.",
        )
        self.found = found
        self.known = known


class EmbedderMismatch(BaseRefused):
    """Vectors of two embedders cannot be compared, so they are never mixed."""

    def __init__(self, path: Place, stored: EmbedderIdentity, wanted: EmbedderIdentity) -> None:
        super().__init__(
            path,
            f"it was filled by the embedder {described(stored)}, and the settings name "
            f"{described(wanted)}. `kb reindex` re-embeds the base with the embedder of the settings.",
        )
        self.stored = stored
        self.wanted = wanted


def described(embedder: EmbedderIdentity) -> str:
    """Its name, with the dimensions where they are known."""
    size = f" ({embedder.dimensions} dimensions)" if embedder.dimensions else ""
    return f"{embedder.name}{size}"
