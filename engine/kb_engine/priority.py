"""Work that nobody waits for, on threads of a lower priority."""

from __future__ import annotations

import os
import sys
import threading


def lower_priority(niceness: int) -> None:
    """Lower that of this thread by so much, where the system knows of such a thing."""
    # On Linux a thread has a priority of its own, by its native id; elsewhere this would slow the process.
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # Beside the process's own: without a privilege a thread can only go down.
        niceness += os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(niceness, 19))
