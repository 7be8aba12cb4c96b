"""The file that Locust runs: `locust -f load/kb_load/locustfile.py --host http://127.0.0.1:3000`.

`python -m kb_load.run` starts what is to be loaded and calls Locust with this; alone it loads any URL. The
environment says the rest: KB_LOAD_SHAPE, KB_LOAD_USERS, KB_LOAD_SECONDS (without a shape Locust's page
decides), KB_LOAD_BUDGETS (a file; what it broke makes the exit status 1), KB_LOAD_FIGURES (a file to
write), KB_LOAD_KEY, KB_LOAD_SEED, KB_LOAD_THINK (seconds between two calls of an agent), KB_LOAD_ANYWAY
(1: load a base that is not empty). What the agents add is removed when they stop.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from locust import events
from locust.env import Environment
from locust.runners import WorkerRunner

from kb_load import shapes
from kb_load.budgets import Entry, Figures, broken, read_budgets
from kb_load.loaded_base import ANYWAY, LoadedBase, refusal
from kb_load.users import HandshakeAgent, ModernAgent

__all__ = ["HandshakeAgent", "ModernAgent"]

REFUSED = 2

Shape = shapes.chosen()  # Locust finds it by its kind; None is none


@events.test_start.add_listener  # type: ignore[untyped-decorator]  # Locust's
def look(environment: Environment, **_more: Any) -> None:
    """Refuse a base that holds anything, unless that is allowed; once, not in workers."""
    if isinstance(environment.runner, WorkerRunner):
        return
    base = LoadedBase(environment.host or "", os.environ.get("KB_LOAD_KEY", ""))
    if reason := refusal(base, anyway=bool(os.environ.get(ANYWAY))):
        sys.stderr.write(f"load: {reason}\n")
        environment.process_exit_code = REFUSED
        environment.events.quitting.remove_listener(judge)  # type: ignore[no-untyped-call]  # Locust's
        if environment.runner is not None:
            environment.runner.quit()


@events.quitting.add_listener  # type: ignore[untyped-decorator]  # Locust's
def judge(environment: Environment, **_more: Any) -> None:
    """Write the figures, say which budgets were broken, and set the exit status; once, not in workers."""
    if isinstance(environment.runner, WorkerRunner):
        return
    figures = _figures(environment)
    if path := os.environ.get("KB_LOAD_FIGURES"):
        Path(path).write_bytes(msgspec.json.encode(figures))
    budgets = os.environ.get("KB_LOAD_BUDGETS")
    complaints = broken(read_budgets(Path(budgets)), figures) if budgets else []
    for complaint in complaints:
        sys.stderr.write(f"budget broken: {complaint}\n")
    environment.process_exit_code = 1 if complaints else 0


def _figures(environment: Environment) -> Figures:
    stats = environment.stats
    began, ended = stats.total.start_time, stats.total.last_request_timestamp or stats.total.start_time
    return Figures(
        seconds=round(max(0.0, ended - began), 3),
        entries=[
            Entry(
                tool=str(entry.name),
                era=str(entry.method),
                calls=entry.num_requests,
                failures=entry.num_failures,
                p50=entry.get_response_time_percentile(0.5),
                p95=entry.get_response_time_percentile(0.95),
                p99=entry.get_response_time_percentile(0.99),
            )
            for entry in sorted(stats.entries.values(), key=lambda each: (each.name, each.method))
        ],
    )
