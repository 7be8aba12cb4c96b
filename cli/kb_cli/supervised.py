"""The child's side of `kb up`: say when it is ready, and end when the parent has gone."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Supervised:
    """`descriptor` is where the parent listens, None where nobody supervises."""

    descriptor: int | None

    @classmethod
    def of(cls, options: argparse.Namespace) -> Supervised:
        """As `--supervised` says. Under a supervisor, stdin ends when it does, and so do we."""
        descriptor: int | None = options.supervised
        if descriptor is not None:
            threading.Thread(target=_end_with_stdin, name="parent", daemon=True).start()
        return cls(descriptor)

    def ready(self, url: str) -> None:
        """Tell the parent the base URL."""
        if self.descriptor is not None:
            os.write(self.descriptor, f"{url}\n".encode())
            os.close(self.descriptor)


def _end_with_stdin() -> None:
    # Covers the parent that is killed and cannot stop its children itself.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
