"""The complete verification by `kb verify`, on PostgreSQL with an index in Qdrant.

The quick part runs here on PostgreSQL alone, in `test_verify_command.py` on the simulator, and in
`test_promises.py` on SQLite. Generated requests test the adapter, the models and the store, which this engine
all has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from kb_cli.verify import Verdict
from kb_contracts.api.operations import OPERATIONS
from kb_verify import Status, Target, run
from tests.contract.conftest import COUNTS, kb_verify
from tests.support.engines import API_KEY, engine
from tests.support.postgres import new_database
from tests.support.qdrant import qdrant

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
    with on_postgres(home, in_qdrant=True) as url:
        done = kb_verify(url, "--json", "--report", str(home / "out"), cwd=home)
    assert done.stdout, done.stderr
    return Verified(done.returncode, msgspec.json.decode(done.stdout, type=Verdict), home / "out")


@contextmanager
def on_postgres(home: Path, *, in_qdrant: bool = False) -> Iterator[str]:
    """Yield the base URL of an engine on PostgreSQL."""
    with ExitStack() as stack:
        settings: dict[str, Any] = {"store": asyncio.run(new_database()).url}
        if in_qdrant:
            settings |= {"index": "qdrant", "parts": (stack.enter_context(qdrant()),)}
        yield stack.enter_context(engine(home, **settings))


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


def test_every_promise_is_kept_with_the_index_in_the_base(verified: Verified, tmp_path: Path) -> None:
    """The same tests as above, without the generated requests."""
    with on_postgres(tmp_path) as url:
        outcomes = run(Target(url, API_KEY), quick=True).outcomes
    broken = {each.id: f"{each.why}\n{each.details}" for each in outcomes if each.status is not Status.PASSED}
    assert broken == {}
    whole = [each.id for each in verified.answer.results.outcomes]
    assert [each.id for each in outcomes] == [each for each in whole if each in {one.id for one in outcomes}]
    assert len(outcomes) > len(whole) / 2
