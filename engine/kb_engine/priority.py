"""Background work, on threads of a lower priority."""

from __future__ import annotations

import os
import sys
import threading


def lower_priority(niceness: int) -> None:
    """Add `niceness` to that of this thread, on systems that support it."""
    # On Linux a thread has a priority of its own, by its native id; elsewhere the whole process would slow.
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # Relative to the process: without a privilege a thread can only lower its priority.
        niceness += os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(niceness, 19))
