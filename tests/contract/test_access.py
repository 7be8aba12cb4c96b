"""Nothing that a caller with a reach is answered depends on what is out of reach, whatever it tries.

All attempts are made at two bases, of which one has documents of others in it; the answers are compared.
First every attempt there is, one after the other; then sequences of some that Hypothesis draws. How many were
made of each operation is recorded with the test, for the table in `docs/access.md`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kb_contracts.access.reach import Reach
from kb_contracts.api.operations import OPERATIONS
from kb_simulator import SimulatorSettings, in_thread
from tests.contract.conftest import COUNTS
from tests.support.engines import API_KEY, engine
from tests.support.postgres import new_database
from tests.support.qdrant import qdrant
from tests.support.twins import REACHES, Attempt, Side, attempts, sides

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

ATTEMPTS = attempts()
EXAMPLES, LONGEST = 12, 12

Record = Callable[[str, object], None]


each_kind = pytest.mark.parametrize(
    "kind",
    [
        "sqlite",
        "simulator",
        "postgres",
        "sqlite and qdrant",
    ],
)
each_reach = pytest.mark.parametrize("reach", REACHES.values(), ids=REACHES.keys())


@contextmanager
def built(kind: str, reach: Reach) -> Iterator[tuple[Side, Side]]:
    """Both and alone, each an engine of its own: jobs outlive even what clears a base."""
    with ExitStack() as stack:
        homes = [Path(stack.enter_context(TemporaryDirectory())) for _ in range(2)]
        urls = [stack.enter_context(_serving(kind, home)) for home in homes]
        pair = stack.enter_context(sides(urls, API_KEY, reach))
        for side in pair:
            side.build()
        yield pair


@contextmanager
def _serving(name: str, home: Path) -> Iterator[str]:
    with ExitStack() as stack:
        if name == "simulator":
            yield stack.enter_context(in_thread(SimulatorSettings(port=0, api_key=API_KEY))).url
            return
        further = {}
        if name == "postgres":
            further["store"] = asyncio.run(new_database()).url
        if "qdrant" in name:
            further.update(index="qdrant", qdrant=stack.enter_context(qdrant()))
        yield stack.enter_context(engine(home, **further))


def try_all(pair: tuple[Side, Side], those: Sequence[Attempt]) -> Counter[str]:
    """Make the attempts on both sides and compare the answers; how many were made of each operation."""
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
def test_what_is_out_of_reach_changes_no_answer(kind: str, reach: Reach, record_property: Record) -> None:
    """Nor does any attempt change what is out of reach."""
    with built(kind, reach) as pair:
        made = try_all(pair, ATTEMPTS)
    assert made.keys() == {each.id for each in OPERATIONS if not each.public}
    record_property(COUNTS, f"{kind}: {made.total()} attempts, {dict(sorted(made.items()))}")


@each_kind
@each_reach
def test_no_sequence_of_attempts_tells_what_is_out_of_reach(
    kind: str, reach: Reach, record_property: Record
) -> None:
    made: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
    @given(st.lists(st.sampled_from(ATTEMPTS), min_size=1, max_size=LONGEST))
    def tried(those: list[Attempt]) -> None:
        with built(kind, reach) as pair:
            made.update(try_all(pair, those))

    tried()
    record_property(COUNTS, f"{kind}: {made.total()} attempts in sequences")
