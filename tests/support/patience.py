"""Every time limit of the tests, in seconds.

A limit ends a test that hangs. None decides between pass and fail on a machine that works, however slowly:
each suits a load of 30 on two cores, and the environment variable `KB_TEST_PATIENCE` multiplies them all.
A test refuses numbers in their place elsewhere (`unit/test_patience.py`).

A test of a time-out moves the clock of the loop (`support/loop_clock.py`), or gives the product `SILENCE` and
a peer that never answers. Proof that something did not happen is a later event that did, never a pause.
"""

from __future__ import annotations

import os

PATIENCE = float(os.environ.get("KB_TEST_PATIENCE", "1"))
"""Factor of all limits."""

ANSWER_SECONDS = 120.0 * PATIENCE
"""One answer: an HTTP response, a message on a socket, a line of a process, a step of another task."""
UNTIL_SECONDS = 180.0 * PATIENCE
"""A condition that `eventually` waits for."""
START_SECONDS = 300.0 * PATIENCE
"""A process that becomes ready, or ends."""
COMMAND_SECONDS = 600.0 * PATIENCE
"""One command from start to end."""
CONTAINER_SECONDS = 600.0 * PATIENCE
"""A container, or a composition of them, that becomes ready or ends."""
SUITE_SECONDS = 1_800.0 * PATIENCE
"""A command that runs a whole suite, installs packages or builds an image."""
TEST_SECONDS = 3_600.0 * PATIENCE
"""One test with its fixtures (pytest-timeout)."""

JOB_SECONDS = 50
"""The longest `wait_seconds` of a tool: for a job that completes."""

SILENCE = 0.05
"""A product's setting where a time-out has to happen, against a peer that never answers. Not multiplied."""
