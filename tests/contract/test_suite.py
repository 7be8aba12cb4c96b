"""The complete verification by `kb verify`, on PostgreSQL with an index in Qdrant.

The quick part runs here on PostgreSQL alone, in `test_verify_command.py` on the simulator, and in
`test_promises.py` on SQLite. Generated requests test the adapter, the models and the store, which this engine
all has.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import psutil
import pytest

from kb_cli.verify import Verdict
from kb_contracts.api.operations import OPERATIONS
from kb_load.processes import free_port
from kb_verify import Status, Target, run
from tests.contract.conftest import COUNTS, kb_verify
from tests.faults.engine_process import Running
from tests.support.engines import API_KEY, engine
from tests.support.eventually import eventually
from tests.support.postgres import new_database
from tests.support.qdrant import qdrant

WORK = 2.0
"""Processor time after which a started engine is killed, in seconds."""
KILLS = 3

pytestmark = pytest.mark.process


@dataclass(frozen=True)
class Verified:
    """One run of the command: its exit status, its answer and the folder of its report."""

    status: int
    answer: Verdict
    report: Path


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Verified:
    """The whole suite on PostgreSQL with an index in Qdrant."""
    home = tmp_path_factory.mktemp("engine")
    settings: dict[str, Any] = {"store": asyncio.run(new_database()).url}
    with qdrant() as part, engine(home, **settings, index="qdrant", parts=(part,)) as url:
        done = kb_verify(url, "--json", "--examples", "5", "--report", str(home / "out"), cwd=home)
    assert done.stdout, done.stderr
    return Verified(done.returncode, msgspec.json.decode(done.stdout, type=Verdict), home / "out")


def worked(engine: Running) -> float:
    """Return the processor time of an engine in seconds."""
    used = psutil.Process(engine.process.pid).cpu_times()
    return used.user + used.system


def test_every_promise_is_kept(verified: Verified, subtests: pytest.Subtests) -> None:
    """A promise that was not shown, for instance because a job was too fast, counts as broken."""
    for promise in verified.answer.promises:
        with subtests.test(promise.sentence):
            assert promise.status is Status.PASSED, f"{promise.why}\n{promise.failed}"
    assert (verified.status, verified.answer.passed) == (0, True)


def test_every_operation_succeeds_and_every_link_is_taken(
    verified: Verified, record_property: Callable[[str, object], None]
) -> None:
    """The counts are printed at the end of the run."""
    results = verified.answer.results
    record_property(COUNTS, results.counts())
    assert [count.operation for count in results.operations] == [operation.id for operation in OPERATIONS]
    assert all(count.succeeded for count in results.operations)
    assert results.links
    assert all(count.taken for count in results.links)


def test_the_report_has_the_same_tests_and_every_requirement(verified: Verified) -> None:
    suite = ElementTree.parse(verified.report / "junit.xml").getroot()[0]
    assert int(suite.attrib["tests"]) == len(verified.answer.results.outcomes)
    assert suite.attrib["failures"] == suite.attrib["errors"] == "0"
    page = (verified.report / "verification.html").read_text("utf-8")
    assert all(f"<td>{id_}</td>" in page for id_ in verified.answer.requirements)


def test_two_engines_keep_every_promise_while_one_is_killed_again_and_again(
    verified: Verified, tmp_path: Path
) -> None:
    """The same tests as above, without the generated requests, and with the index in the base."""
    store = asyncio.run(new_database()).url
    settings = {"KB_STORE": store, "KB_API_KEY": API_KEY, "KB_KEEP_ORIGINALS": "true"}
    settings |= {"KB_INGEST_WORKERS": "1", "KB_LEASE_SECONDS": "2"}
    is_over, kills = threading.Event(), 0

    def started(port: int) -> Running:
        return Running(tmp_path / str(port), KB_ENGINE_PORT=str(port), **settings)

    def kill_often(doomed: Running) -> None:
        nonlocal kills
        while not is_over.is_set():
            enough = worked(doomed) + WORK
            eventually(partial(worked, doomed), lambda used: is_over.is_set() or used > enough)  # noqa: B023
            doomed.kill()
            kills += 1
            doomed = started(doomed.port)
        doomed.stop()

    doomed, other = started(free_port()), started(free_port())
    with ThreadPoolExecutor() as killing:
        killed = killing.submit(kill_often, doomed)
        try:
            outcomes = run(Target(f"{doomed.url},{other.url}", API_KEY), quick=True).outcomes
        finally:
            is_over.set()
    killed.result()
    other.stop()
    assert kills >= KILLS
    broken = {each.id: f"{each.why}\n{each.details}" for each in outcomes if each.status is not Status.PASSED}
    assert broken == {}
    whole = [each.id for each in verified.answer.results.outcomes]
    assert [each.id for each in outcomes] == [each for each in whole if each in {one.id for one in outcomes}]
    assert len(outcomes) > len(whole) / 2
