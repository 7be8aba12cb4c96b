"""Stopping on signals: the first requests a stop, the second takes effect at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_stop_signal(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` on the first SIGTERM or SIGINT; the second has its previous effect.

    Does nothing outside the main thread, where signals cannot be handled.
    """
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()

    before = {number: signal.getsignal(number) for number in signals}

    def restore() -> None:
        for number, handler in before.items():
            # Only the loop's own handler is removed, and only once: another may have been installed since.
            if loop.remove_signal_handler(number) and handler is not None:
                signal.signal(number, handler)

    def first() -> None:
        restore()
        stop()

    for number in signals:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        restore()
