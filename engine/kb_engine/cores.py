"""The number of cores for threads and processes of the engine."""

from __future__ import annotations

import os

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""Number of cores that this process may use: a container may give it fewer than the machine has."""
