"""A fake engine that fails on command, and that passes the same conformance suite as the real engine.

    python -m kb_simulator --seed 7 --port 8900 --control 8901

One seed and one virtual clock determine a run, whatever the order in which requests arrive.

    Simulator, in_thread      run it in an event loop, or in a separate thread
    ControlClient             steer it: clock, faults, journal, snapshots, namespaces
    Fault, Match, When        faults as data; CATALOGUE has them by name
    AtOnce, AfterPolls, ...   when and how jobs end
    kb_simulator.pytest_plugin    fixtures for the tests of any project

The names are imported at their first use, so that starting a simulator does not import the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kb_simulator.determinism import Clock, ClockMode
    from kb_simulator.engine.jobs import AfterPolls, AfterTime, AtOnce, FailAt, Stuck
    from kb_simulator.harness.app import Simulator, in_thread
    from kb_simulator.harness.client import (
        ClockControl,
        ControlClient,
        ControlError,
        FaultsControl,
        JournalControl,
    )
    from kb_simulator.harness.faults import CATALOGUE, Fault, When
    from kb_simulator.harness.journal import Expectation, Match, Verdict
    from kb_simulator.settings import SimulatorSettings

__all__ = [
    "CATALOGUE",
    "AfterPolls",
    "AfterTime",
    "AtOnce",
    "Clock",
    "ClockControl",
    "ClockMode",
    "ControlClient",
    "ControlError",
    "Expectation",
    "FailAt",
    "Fault",
    "FaultsControl",
    "JournalControl",
    "Match",
    "Simulator",
    "SimulatorSettings",
    "Stuck",
    "Verdict",
    "When",
    "in_thread",
]

_HOMES = (  # the cheapest to import first
    "determinism",
    "engine.jobs",
    "settings",
    "harness.journal",
    "harness.faults",
    "harness.app",
    "harness.client",
)


def __getattr__(name: str) -> object:
    for home in _HOMES if name in __all__ else ():
        if hasattr(module := import_module(f"{__name__}.{home}"), name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
