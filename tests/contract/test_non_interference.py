"""Data outside a caller's access scope have no effect: its answers are the same with and without them.

Two callers work on one base, each in its own collection, by a history that is drawn from a seed. One of them
also works on a second base without the other caller. It tries all operations on its own data and on the data
of the other caller: by numbers, uids, jobs, versions, sources, tags, texts, collections and words. Each of
its answers must be the same on both bases, except for times and generated names.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.contract.guesses import play
from tests.parity.comparing import Difference, differences
from tests.support.engines import engine, simulator
from tests.support.postgres import give_back, new_database

pytestmark = pytest.mark.process


def _told(each: Difference) -> str:
    where = f"step {each.number}: {each.place}\n  {each.asked}"
    return f"{where}\n  with them {each.engine!r}\n  without {each.simulator!r}"


@pytest.fixture
def bases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """A function that starts an empty engine with a name and returns its URL."""
    with ExitStack() as stack:

        def start(name: str) -> str:
            if request.param == "simulator":
                return stack.enter_context(simulator())
            settings: dict[str, Any] = {}
            if request.param == "PostgreSQL":
                database = asyncio.run(new_database())
                stack.callback(give_back, database)
                settings["store"] = database.url
            return stack.enter_context(engine(tmp_path / name, **settings))

        yield start


@pytest.mark.parametrize(
    ("bases", "seed"), [("SQLite", 7), ("PostgreSQL", 11), ("simulator", 11)], indirect=["bases"]
)
def test_a_base_answers_the_same_with_and_without_documents_out_of_scope(
    seed: int, bases: Callable[[str], str], record_property: Callable[[str, object], None]
) -> None:
    with_them, without_them = play(seed, bases("both"), bases("alone"))
    differing = differences(with_them, without_them)
    assert not differing, f"{len(differing)} (seed {seed})\n" + "\n".join(map(_told, differing[:12]))
    tries = Counter(each.step.operation for each in with_them)
    assert len(tries) > 25
    record_property("tries", dict(sorted(tries.items())))


def test_the_comparison_sees_what_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the comparison is effective: here the store ignores the access scope."""
    monkeypatch.setattr("kb_engine.store.store.bounded", lambda read, _reach: read)
    with engine(tmp_path / "both") as both, engine(tmp_path / "alone") as alone:
        assert differences(*play(7, both, alone))
