"""Processes that tests look at."""

from __future__ import annotations

from contextlib import suppress

import psutil


def own_children() -> list[psutil.Process]:
    """What this process has started and what that has; but what other tests leave for all that come.

    That is the database server, and what `multiprocessing` starts with a first process of its own.
    """
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.name() != "postgres" and "resource_tracker" not in " ".join(child.cmdline()):
                found.append(child)
    return found
