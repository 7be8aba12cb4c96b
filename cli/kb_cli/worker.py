"""The worker's side of `kb serve --workers`: what its parent gave it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several. `descriptor` is the channel by which connections come, `slot` its number.

    `folder` is where the workers count; its name is the instance whose staged uploads they share.
    """

    descriptor: int
    slot: int
    folder: Path

    @classmethod
    def of(cls, text: str) -> Worker:
        """From the command line, as `argument` wrote it."""
        descriptor, slot, folder = text.split(",", 2)
        return cls(int(descriptor), int(slot), Path(folder))

    def argument(self) -> str:
        """For the command line."""
        return f"{self.descriptor},{self.slot},{self.folder}"

    def channel(self) -> socket.socket:
        """The socket, which is the caller's from now on."""
        return socket.socket(fileno=self.descriptor)
