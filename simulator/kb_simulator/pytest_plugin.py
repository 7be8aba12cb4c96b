"""Fixtures for tests of a client of the engine: `pytest -p kb_simulator.pytest_plugin`.

Or, in `conftest.py`: `pytest_plugins = ["kb_simulator.pytest_plugin"]`.

    def test_a_lost_acknowledgement_makes_no_second_document(engine, faults):
        faults.arm("lost_ack", operation="createJob", nth=1)
        add_note(engine.url, engine.api_key, "the moon is made of rock")   # your code, with its retry
        assert engine.control.state().status.documents.total == 1

    simulator   the simulator, one per session, in a separate thread
    engine      a fresh engine for each test: `url`, `api_key`, `headers`, and `control` to look into it
    clock       its clock: `clock.advance(10)`, `clock.set_mode("manual")`
    faults      its faults: `faults.arm("rate_limit", operation="search", nth=2)`
    journal     its requests: `journal.expect(operation="createJob", exactly=1)`

Each test has its own engine, selected by its key alone, so that a client needs no additional header and tests
may run in parallel. The engine is removed after the test.

An armed fault that never fires fails the test, which would otherwise prove nothing; arm it with
`optional=True` if it need not fire. A failing test prints the seed, the command that repeats it, and the last
requests to its engine.

    --sim-seed 7         the seed of all engines: ids, delays, rolls (7)
    --sim-seed random    a new seed for each run; the header of the run and every failure show it
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

import pytest

from kb_simulator.harness.app import Simulator, in_thread
from kb_simulator.harness.client import ClockControl, ControlClient, FaultsControl, JournalControl
from kb_simulator.harness.journal import Record
from kb_simulator.settings import SimulatorSettings

T = TypeVar("T")

_DEFAULT_SEED = 7
_LAST_REQUESTS = 10
_SEED = pytest.StashKey[int]()


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine for one test. `headers` contain its key; `control` steers and inspects it."""

    url: str
    api_key: str
    namespace: str
    control: ControlClient

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that every request must have."""
        return {"Authorization": f"Bearer {self.api_key}"}


@pytest.fixture(scope="session")
def simulator(request: pytest.FixtureRequest) -> Iterator[Simulator]:
    """The simulator, listening on free ports."""
    settings = SimulatorSettings(seed=request.config.stash[_SEED], port=0, control=0)
    with in_thread(settings) as running:
        yield running


@pytest.fixture(scope="session")
def _control(simulator: Simulator) -> Iterator[ControlClient]:
    assert simulator.control_url is not None, "the session's simulator has a control plane"
    with ControlClient(simulator.control_url) as control:
        yield control


@pytest.fixture
def engine(simulator: Simulator, _control: ControlClient, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Yield a new engine, removed after the test."""
    name = blake2b(request.node.nodeid.encode(), digest_size=8).hexdigest()
    api_key = f"sim-{name}"
    control = _control.namespace(name, api_key=api_key)
    yield Engine(simulator.url, api_key, name, control)
    control.remove()


@pytest.fixture
def clock(engine: Engine) -> ClockControl:
    """The engine's clock."""
    return engine.control.clock


@pytest.fixture
def faults(engine: Engine) -> FaultsControl:
    """The engine's faults."""
    return engine.control.faults


@pytest.fixture
def journal(engine: Engine) -> JournalControl:
    """The engine's journal."""
    return engine.control.journal


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kb simulator")
    group.addoption(
        "--sim-seed", default=str(_DEFAULT_SEED), metavar="SEED", help="seed of the simulator, or `random`"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set the seed."""
    wanted = str(config.getoption("--sim-seed"))
    try:
        config.stash[_SEED] = random.SystemRandom().getrandbits(32) if wanted == "random" else int(wanted)
    except ValueError as error:
        raise pytest.UsageError(f"--sim-seed takes an integer or `random`, not {wanted!r}") from error


def pytest_report_header(config: pytest.Config) -> str:
    """The seed of this run."""
    return f"kb simulator: seed {config.stash[_SEED]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, T, T]:
    """Fail a passing test if a fault that it armed never fired."""
    result = yield
    if (engine := _engine_of(item)) is not None and (unfired := engine.control.journal.verify().unfired):
        pytest.fail("armed faults never fired:\n  " + "\n  ".join(unfired), pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure the command that repeats it and the engine's last requests."""
    report = yield
    if not report.failed or (engine := _engine_of(item)) is None:
        return report
    seed = item.config.stash[_SEED]
    # Plugins from a `conftest.py` load automatically; plugins from the command line must be named again.
    named = [name for name in item.config.getoption("plugins") or () if not name.startswith("no:")]
    again = "".join(f" -p {shlex.quote(name)}" for name in named) + f" --sim-seed {seed}"
    lines = [f"seed {seed}; repeat with: python -m pytest{again} {shlex.quote(item.nodeid)}"]
    if call.when == "call":
        strangers = engine.control.journal.verify().strangers
        lines += [f"no such operation or field: {text}" for text in strangers]
        lines += map(_line, engine.control.journal.entries(_LAST_REQUESTS))
    report.sections.append(("simulator", "\n".join(lines)))
    return report


def _engine_of(item: pytest.Item) -> Engine | None:
    # Items of other collectors have no fixtures.
    found = getattr(item, "funcargs", {}).get("engine")
    return found if isinstance(found, Engine) else None


def _line(record: Record) -> str:
    answer = record.status if record.status is not None else "no answer"
    faults = f" [{', '.join(record.faults)}]" if record.faults else ""
    code = f" {record.code}" if record.code else ""
    return f"#{record.number} {record.method} {record.target} -> {answer}{code}{faults}"
