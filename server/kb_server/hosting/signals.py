"""Stopping on signals: the first asks, the second does not wait."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_stop_signal(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` on the first SIGTERM or SIGINT; the second does what it does by default.

    Does nothing outside the main thread, where signals cannot be handled.
    """
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()

    def restore() -> None:
        for number in signals:
            loop.remove_signal_handler(number)

    def first() -> None:
        restore()
        stop()

    for number in signals:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        restore()
