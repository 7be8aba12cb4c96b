"""The contract's suite on the real engine, with each of its stores, and on the simulator, by `kb verify`."""

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
from kb_verify import Status
from tests.contract.conftest import COUNTS, kb_verify
from tests.support.engines import engine, simulator
from tests.support.postgres import new_database
from tests.support.qdrant import qdrant

pytestmark = pytest.mark.process


@dataclass(frozen=True)
class Verified:
    """One run: what the command answered, and its report."""

    name: str
    status: int
    answer: Verdict
    report: Path


@pytest.fixture(scope="module")
def runs() -> dict[str, Verified]:
    """The runs so far, by name."""
    return {}


@pytest.fixture(scope="module", params=["engine", "postgres", "postgres and qdrant", "simulator"])
def verified(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, runs: dict[str, Verified]
) -> Verified:
    """The suite's run on one of them."""
    home = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    with serving(request.param, home) as url:
        done = kb_verify(url, "--json", "--report", str(home / "out"), cwd=home)
    assert done.stdout, done.stderr
    answer = msgspec.json.decode(done.stdout, type=Verdict)
    runs[request.param] = Verified(request.param, done.returncode, answer, home / "out")
    return runs[request.param]


@contextmanager
def serving(name: str, home: Path) -> Iterator[str]:
    """One that keeps the contract; its base URL."""
    with ExitStack() as stack:
        if name == "simulator":
            yield stack.enter_context(simulator())
            return
        settings: dict[str, Any] = {}
        if name.startswith("postgres"):
            settings["store"] = asyncio.run(new_database()).url
        if name.endswith("qdrant"):
            settings |= {"index": "qdrant", "qdrant": stack.enter_context(qdrant())}
        yield stack.enter_context(engine(home, **settings))


def test_every_promise_is_kept(verified: Verified, subtests: pytest.Subtests) -> None:
    """And shown: none of them is too fast for any."""
    for promise in verified.answer.promises:
        with subtests.test(promise.sentence):
            assert promise.status is Status.PASSED, f"{promise.why}\n{promise.failed}"
    assert (verified.status, verified.answer.passed) == (0, True)


def test_every_operation_succeeds_and_every_link_is_taken(
    verified: Verified, record_property: Callable[[str, object], None]
) -> None:
    """The counts are printed at the end of the run."""
    results = verified.answer.results
    record_property(COUNTS, f"{verified.name}: {results.counts()}")
    assert [count.operation for count in results.operations] == [operation.id for operation in OPERATIONS]
    assert all(count.succeeded for count in results.operations)
    assert results.links
    assert all(count.taken for count in results.links)


def test_the_report_tells_the_same(verified: Verified) -> None:
    """JUnit counts the same tests, and the page names every requirement."""
    suite = ElementTree.parse(verified.report / "junit.xml").getroot()[0]
    assert int(suite.attrib["tests"]) == len(verified.answer.results.outcomes)
    assert suite.attrib["failures"] == suite.attrib["errors"] == "0"
    page = (verified.report / "verification.html").read_text("utf-8")
    assert all(f"<td>{id_}</td>" in page for id_ in verified.answer.requirements)


def test_all_ran_the_same_tests(verified: Verified, runs: dict[str, Verified]) -> None:
    ids = {name: [outcome.id for outcome in run.answer.results.outcomes] for name, run in runs.items()}
    for name, others in ids.items():
        assert others == ids[verified.name], name
