"""The child's side of a supervised process: it reports that it is ready, and ends when its parent does."""

from __future__ import annotations

import os
import signal
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kb_server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class ParentLink:
    """`descriptor` is the pipe on which the parent waits for the URL; None where nobody supervises."""

    descriptor: int | None

    @classmethod
    def open(cls, descriptor: int | None) -> ParentLink:
        """Under a supervisor, stdin ends when the supervisor does, however it was killed: so must we."""
        if descriptor is not None:
            threading.Thread(target=_end_with_stdin, name="parent", daemon=True).start()
        return cls(descriptor)

    def report_ready(self, url: str) -> None:
        """Tell the parent the base URL; once."""
        if self.descriptor is not None:
            os.write(self.descriptor, f"{url}\n".encode())
            os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several processes on a port. `descriptor` is the channel on which connections come.

    `folder` is where all workers count their metrics, each under its `slot`; its name is also the instance
    whose staged uploads they share.
    """

    descriptor: int
    slot: int
    folder: Path

    @classmethod
    def parse(cls, text: str) -> Worker:
        """From the command line, as `argument` wrote it."""
        descriptor, slot, folder = text.split(",", 2)
        return cls(int(descriptor), int(slot), Path(folder))

    def argument(self) -> str:
        """For the command line."""
        return f"{self.descriptor},{self.slot},{self.folder}"

    def channel(self) -> socket.socket:
        """The socket, which the caller owns from now on."""
        return socket.socket(fileno=self.descriptor)


def encode_settings(settings: ServerSettings) -> bytes:
    """One line for a worker's stdin, where its secrets are in no process list."""
    return msgspec.json.encode(settings, enc_hook=str) + b"\n"


def read_settings(descriptor: int = 0) -> ServerSettings:
    """The settings that the parent wrote to `descriptor`; what follows them there is left unread."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(descriptor, 1)):
        line += byte
    return msgspec.json.decode(line, type=ServerSettings, dec_hook=_from_text)


def _from_text(kind: type, text: Any) -> Any:
    return kind(text)


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
