"""The complete verification by `kb verify`: two engines on PostgreSQL, of which one is killed repeatedly.

The promises of searches are verified with an index in Qdrant too. The quick part runs in
`test_verify_command.py` on the simulator, and in `test_promises.py` on SQLite. Generated requests test the
adapter, the models and the store, which these engines all have.
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
from kb_verify.run import SUITE
from tests.contract.conftest import COUNTS, MOST_TOO_FAST, is_too_fast, kb_verify
from tests.faults.engine_process import Running
from tests.support.engines import API_KEY, engine
from tests.support.eventually import eventually
from tests.support.patience import SUITE_SECONDS
from tests.support.postgres import new_database

WORK = 1.5
"""Processor time after which a started engine is killed, in seconds."""
KILLS = 3
SEARCHING = ("pages", "ranking", "search", "vector_search")
"""The modules of the suite whose promises depend most on the index."""

pytestmark = pytest.mark.process


@dataclass(frozen=True)
class Verified:
    """One run of the command: its exit status, answer and folder of reports, and the kills."""

    status: int
    answer: Verdict
    report: Path
    kills: int


def worked(engine: Running) -> float:
    """Return the processor time of an engine in seconds."""
    used = psutil.Process(engine.process.pid).cpu_times()
    return used.user + used.system


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Verified:
    """The whole suite, with generated requests to the engine that is not killed."""
    home = tmp_path_factory.mktemp("engines")
    settings = {"KB_STORE": asyncio.run(new_database()).url, "KB_API_KEY": API_KEY}
    settings |= {"KB_KEEP_ORIGINALS": "true", "KB_INGEST_WORKERS": "1", "KB_LEASE_SECONDS": "2"}
    is_over, kills = threading.Event(), 0

    def started(port: int) -> Running:
        return Running(home / str(port), KB_ENGINE_PORT=str(port), **settings)

    def kill_often(doomed: Running) -> None:
        nonlocal kills
        while kills < KILLS and not is_over.is_set():
            enough = worked(doomed) + WORK
            eventually(
                partial(worked, doomed),
                lambda used: is_over.is_set() or used > enough,  # noqa: B023
                seconds=SUITE_SECONDS,
            )
            doomed.kill()
            kills += 1
            doomed = started(doomed.port)
        is_over.wait()
        doomed.stop()

    doomed, other = started(free_port()), started(free_port())
    with ThreadPoolExecutor() as killing:
        killed = killing.submit(kill_often, doomed)
        try:
            engines, report = f"{doomed.url},{other.url}", str(home / "out")
            bounds = ("--examples", "2", "--seconds", str(SUITE_SECONDS))
            done = kb_verify(engines, "--json", *bounds, "--report", report, cwd=home)
        finally:
            is_over.set()
    killed.result()
    other.stop()
    assert done.stdout, done.stderr
    return Verified(done.returncode, msgspec.json.decode(done.stdout, type=Verdict), home / "out", kills)


def test_every_promise_is_kept(verified: Verified, subtests: pytest.Subtests) -> None:
    """A promise that was not shown counts as broken, but for the few whose jobs ended too early."""
    assert verified.kills == KILLS
    too_fast = [promise for promise in verified.answer.promises if is_too_fast(promise)]
    assert len(too_fast) <= MOST_TOO_FAST
    for promise in verified.answer.promises:
        with subtests.test(promise.sentence):
            assert promise.status is Status.PASSED or promise in too_fast, f"{promise.why}\n{promise.failed}"
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


def test_promises_of_searches_are_kept_with_an_index_in_qdrant(tmp_path: Path) -> None:
    """On PostgreSQL, without refusals, which reach no index. `tests/parity` has the other operations."""
    from tests.support.qdrant import qdrant  # a second of imports, for this test alone

    settings: dict[str, Any] = {"store": asyncio.run(new_database()).url}
    with qdrant() as part, engine(tmp_path, **settings, index="qdrant", parts=(part,)) as url:
        tests = [f"{SUITE}.test_{each}" for each in SEARCHING]
        outcomes = run(Target(url, API_KEY), tests=tests, only=["-k", "not refused"]).outcomes
    broken = {each.id: f"{each.why}\n{each.details}" for each in outcomes if each.status is not Status.PASSED}
    assert outcomes
    assert broken == {}
