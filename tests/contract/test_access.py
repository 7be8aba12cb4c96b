"""Answers to a caller with an access scope do not depend on documents outside it, for every operation.

All attempts are made on two bases, of which one has additional documents outside the scope; the answers are
compared. First all attempts are made in order, then sequences chosen by Hypothesis. The number of attempts of
each operation is recorded with the test, for the table in `docs/access-reference.md`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kb_contracts.access.reach import Reach
from kb_contracts.api.operations import OPERATIONS
from kb_simulator import SimulatorSettings, in_thread
from tests.contract.conftest import COUNTS
from tests.support.engines import API_KEY, engine
from tests.support.postgres import Database, drop, new_database
from tests.support.scope import rows
from tests.support.twins import REACHES, Attempt, Side, attempts, sides

if TYPE_CHECKING:
    from tests.support.qdrant_cores import EdgeCore

pytestmark = pytest.mark.process

ATTEMPTS = attempts()
EXAMPLES, LONGEST = 12, 12
COPIED = {"sqlite", "postgres"} | (set() if os.environ.get("QDRANT_URL") else {"sqlite and qdrant"})
"""Kinds of bases that are faster to copy than to build."""

Record = Callable[[str, object], None]
Pair = tuple[Side, Side]
AsBuilt = Callable[[str, Reach], AbstractContextManager[Pair]]


each_kind = pytest.mark.parametrize(
    "kind", rows("sqlite", "simulator", "postgres", whole=["sqlite and qdrant"])
)
each_reach = pytest.mark.parametrize("reach", REACHES.values(), ids=REACHES.keys())
each_kind_and_reach = pytest.mark.parametrize(
    ("kind", "reach"),
    [
        pytest.param(kind, reach, id=f"{name}-{kind}")
        for kind, names in (
            *((kind, REACHES) for kind in ("sqlite", "postgres")),
            *((kind, ["a prefix"]) for kind in rows("simulator", whole=["sqlite and qdrant"])),
        )
        for name, reach in REACHES.items()
        if name in names
    ],
)
"""A scope is a condition in SQL. The simulator has one function for all, and Qdrant filters searches only."""


@dataclass(frozen=True)
class Place:
    """The storage of one engine."""

    home: Path
    database: Database | None = None
    core: EdgeCore | None = None
    """The core behind Qdrant's routes."""
    further: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the engine."""


@contextmanager
def built(kind: str, reach: Reach) -> Iterator[Pair]:
    """Yield a pair of bases, with and without other documents, on separate engines.

    Two engines, because jobs outlive even an operation that clears a base.
    """
    with _places(kind) as places, _pair(kind, reach, places) as pair:
        for side in pair:
            side.build()
        yield pair


@contextmanager
def each_as_built(kind: str, reach: Reach) -> Iterator[Callable[[], AbstractContextManager[Pair]]]:
    """Yield a function that yields pairs as `built` does, copied from one pair if possible."""
    if kind not in COPIED:
        yield partial(built, kind, reach)
        return
    with _places(kind) as places:
        with _pair(kind, reach, places) as pair:
            for side in pair:
                side.build()
        yield partial(_copies, kind, reach, places, pair)


@pytest.fixture(scope="module")
def as_built() -> Iterator[AsBuilt]:
    """Yields a function as `built`, whose pairs are copies for all tests of a kind and an access scope."""
    with ExitStack() as stack:
        copying = cache(lambda *chosen: stack.enter_context(each_as_built(*chosen)))
        yield lambda *chosen: copying(*chosen)()


@contextmanager
def _copies(kind: str, reach: Reach, places: Sequence[Place], models: Pair) -> Iterator[Pair]:
    with _places(kind, places) as own, _pair(kind, reach, own) as pair:
        for side, model in zip(pair, models, strict=True):
            side.known, side.cursor = deepcopy(model.known), model.cursor
        yield pair


@contextmanager
def _places(kind: str, models: Sequence[Place | None] = (None, None)) -> Iterator[list[Place]]:
    """Yield two empty places, or copies of these places, whose engines have ended."""
    with ExitStack() as stack:
        yield [stack.enter_context(_place(kind, model)) for model in models]


@contextmanager
def _place(kind: str, model: Place | None) -> Iterator[Place]:
    with TemporaryDirectory() as folder:
        home = Path(folder)
        if model is not None:
            shutil.copytree(model.home, home, dirs_exist_ok=True)
        if kind == "postgres":
            database = asyncio.run(new_database(like=None if model is None else model.database))
            yield Place(home, database, further={"store": database.url})
            asyncio.run(drop(database))
        elif "qdrant" in kind:
            # Imported for Qdrant alone, since it takes a second.
            from tests.support.qdrant import qdrant
            from tests.support.qdrant_cores import EdgeCore

            core = EdgeCore() if model is None or model.core is None else model.core.copy()
            with qdrant(core) as settings:
                yield Place(home, core=core, further={"index": "qdrant", "parts": (settings,)})
        else:
            yield Place(home)


@contextmanager
def _pair(kind: str, reach: Reach, places: Sequence[Place]) -> Iterator[Pair]:
    with ExitStack() as stack:
        urls = [stack.enter_context(_serving(kind, place)) for place in places]
        yield stack.enter_context(sides(urls, API_KEY, reach))


@contextmanager
def _serving(kind: str, place: Place) -> Iterator[str]:
    if kind == "simulator":
        with in_thread(SimulatorSettings(port=0, api_key=API_KEY)) as running:
            yield running.url
    else:
        with engine(place.home, **place.further) as url:
            yield url


def try_all(pair: Pair, those: Sequence[Attempt]) -> Counter[str]:
    """Compare the answers of both sides to the attempts, and return their number by operation."""
    both, alone = pair
    before = both.others()
    made: Counter[str] = Counter()
    for attempt in those:
        made[attempt.operation.id] += 1
        assert attempt.on(both) == attempt.on(alone), f"{attempt!r} is answered in another way"
    assert both.others() == before
    return made


@each_kind
@each_reach
def test_documents_outside_the_access_scope_change_no_response(
    kind: str, reach: Reach, as_built: AsBuilt, record_property: Record
) -> None:
    """The attempts do not change anything outside the scope either."""
    with as_built(kind, reach) as pair:
        made = try_all(pair, ATTEMPTS)
    assert made.keys() == {each.id for each in OPERATIONS if not each.public}
    record_property(COUNTS, f"{kind}: {made.total()} attempts, {dict(sorted(made.items()))}")


@each_kind_and_reach
def test_no_sequence_of_attempts_tells_what_is_out_of_reach(
    kind: str, reach: Reach, as_built: AsBuilt, record_property: Record
) -> None:
    made: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
    @given(st.lists(st.sampled_from(ATTEMPTS), min_size=1, max_size=LONGEST))
    def tried(those: list[Attempt]) -> None:
        with as_built(kind, reach) as pair:
            made.update(try_all(pair, those))

    tried()
    record_property(COUNTS, f"{kind}: {made.total()} attempts in sequences")
