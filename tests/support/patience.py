"""Every time limit of the tests, in seconds.

A limit ends a test that hangs. On a working machine, however slow, no limit decides between pass and fail:
each allows for a load of 30 on two cores, and the environment variable `KB_TEST_PATIENCE` multiplies them
all. A test refuses literal numbers in other places (`unit/test_patience.py`).

A test of a time-out advances the clock of the loop (`support/loop_clock.py`), or gives the product `SILENCE`
and a peer that never answers. To prove that something did not happen, a test waits for a later event, not for
a time.
"""

from __future__ import annotations

import os

PATIENCE = float(os.environ.get("KB_TEST_PATIENCE", "1"))
"""Factor of all limits."""

ANSWER_SECONDS = 120.0 * PATIENCE
"""Limit for one answer: an HTTP response, a message on a socket, a line of a process, a step of another task.
"""
UNTIL_SECONDS = 180.0 * PATIENCE
"""Limit for a condition that `eventually` waits for."""
START_SECONDS = 300.0 * PATIENCE
"""Limit for a process to become ready, or to end."""
COMMAND_SECONDS = 600.0 * PATIENCE
"""Limit for one command from start to end."""
CONTAINER_SECONDS = 600.0 * PATIENCE
"""Limit for a container, or a composition of containers, to become ready or to end."""
SUITE_SECONDS = 1_800.0 * PATIENCE
"""Limit for a command that runs a whole suite, installs packages or builds an image."""
TEST_SECONDS = 3_600.0 * PATIENCE
"""Limit for one test with its fixtures (pytest-timeout)."""

JOB_SECONDS = 50
"""The longest `wait_seconds` of a tool, for a job that completes."""

SILENCE = 0.05
"""Setting of the product in a test where a time-out has to happen, against a silent peer. Not multiplied."""
