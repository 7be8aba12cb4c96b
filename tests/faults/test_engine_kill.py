"""The engine killed during its work: accepted jobs are done exactly once after the next start."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.faults.engine_kills import Kills, OnPostgres, OnSqlite, Place
from tests.faults.engine_process import Running, running
from tests.support.eventually import eventually
from tests.support.patience import START_SECONDS
from tests.support.postgres import give_back, new_database
from tests.support.scope import ALL, rows
from tests.support.stack import Process

pytestmark = pytest.mark.process

NOTES = 100
KILLS = int(os.environ.get("KB_TEST_KILLS", "6" if ALL else "2"))


def test_a_killed_engine_leaves_no_search_process(tmp_path: Path) -> None:
    engine = Running(tmp_path, KB_SEARCH_PROCESSES="2")
    engine.post("/jobs", json={"text": "bees keep warm by shivering"})
    engine.all_ended()

    def search(_: int) -> int:
        return len(engine.post("/search", json={"query": "how do bees keep warm"})["results"])

    def searchers() -> list[psutil.Process]:
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(search, range(40))) == {1}
        return psutil.Process(engine.process.pid).children()

    started = eventually(searchers, lambda found: len(found) == 2, what="the start of both")
    engine.kill()
    eventually(lambda: [each for each in started if each.is_running()], lambda left: not left)
    with running(tmp_path) as again:
        assert again.post("/search", json={"query": "bees"})["total"] == 1


@pytest.fixture(params=rows("SQLite", "PostgreSQL", whole=["PostgreSQL and Qdrant"]))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The storage of the base and the index; database and Qdrant's core outlive the engine."""
    if request.param == "SQLite":
        yield OnSqlite(tmp_path)
        return
    database = asyncio.run(new_database())
    place = OnPostgres(database)
    with ExitStack() as stack:
        if request.param.endswith("Qdrant"):
            from tests.support.qdrant import environment_of, qdrant  # a second of imports, for this row alone

            place.settings |= environment_of(stack.enter_context(qdrant()))
        yield place
    give_back(database)


def test_no_number_of_kills_loses_what_was_accepted(
    tmp_path: Path, place: Place, record_property: Callable[[str, object], None]
) -> None:
    """Half of the kills within one job, the rest at random moments of work, start or acceptance.

    Everything answered with 202 exists exactly once at the end, and between two kills the file of every
    unfinished job is intact in the spool. Files of unaccepted submissions are removed from it. The number of
    kills is `KB_TEST_KILLS`, and two where an index in Qdrant has to catch up after the next start.
    """
    history = Kills(tmp_path, place)
    kills = min(2, KILLS) if "VECTOR_DB_TYPE" in place.settings else KILLS
    history.during_one_job(kills // 2)
    for number in range(kills - history.kills):
        history.anywhere(random.Random(number).uniform(0.0, 0.4))
    history.check_the_end()
    record_property("kills", history.kills)
    record_property("accepted", len(history.accepted))
    assert history.kills == kills


def test_a_stopped_engine_ends_in_order_and_finishes_later(tmp_path: Path) -> None:
    """SIGTERM during a job: status 0, no partial data; the job is done after the next start."""
    with running(tmp_path) as engine:
        job = engine.post("/jobs", json={"text": " ".join(f"word{number}" for number in range(60_000))})
        engine.wait_until_begun(job["id"])
    with running(tmp_path) as again:
        assert again.all_ended()["completed"] == 1
        assert again.get("/documents")["total"] == 1


def test_a_second_engine_on_the_same_home_is_refused_in_one_line(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        second = Process.start(
            "-m", "kb_engine", KB_HOME=str(tmp_path), KB_ENGINE_PORT="0", KB_EMBEDDER="hash"
        )
        assert second.popen.wait(START_SECONDS) == 1
        second.stop()
        (line,) = second.output().splitlines()
        assert line.startswith("kb engine: ")
        assert engine.get("/status")["version"] == "v3.0.0"
