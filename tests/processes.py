"""Processes that tests look at."""

from __future__ import annotations

from contextlib import suppress

import psutil


def own_children() -> list[psutil.Process]:
    """What this process has started and what that has; but the database server, which many tests share."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.name() != "postgres":
                found.append(child)
    return found
