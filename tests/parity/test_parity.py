"""One history on engine and simulator: the differences are exactly the entries of the ledger."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from tests.mutation.mutants import MUTANTS
from tests.parity.comparing import Difference, Entry, differences, ledger
from tests.parity.history import Story
from tests.parity.playing import Played, Side
from tests.support.engines import API_KEY, engine, simulator
from tests.support.patience import ANSWER_SECONDS

pytestmark = pytest.mark.process

SEED = 7
STEPS = 430


def play(serving: AbstractContextManager[str]) -> list[Played]:
    headers = {"Authorization": f"Bearer {API_KEY}"}
    with serving as url, httpx.Client(base_url=url, headers=headers, timeout=ANSWER_SECONDS) as http:
        return Side(http).play(list(Story(SEED).steps(STEPS)))


def unlisted_of(found: list[Difference]) -> list[Difference]:
    entries = ledger()
    return [each for each in found if not any(entry.covers(each.place) for entry in entries)]


@pytest.fixture(scope="module", params=["in the base", "qdrant"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Played]:
    """The history on an engine, for each place of its index."""
    home: Path = tmp_path_factory.mktemp("parity")
    if request.param == "in the base":
        return play(engine(home))
    from tests.support.qdrant import qdrant  # a second of imports, for this row alone

    with qdrant() as settings:
        return play(engine(home, index="qdrant", parts=(settings,)))


@pytest.fixture(scope="module")
def simulated() -> list[Played]:
    return play(simulator())


@pytest.fixture(scope="module")
def found(real: list[Played], simulated: list[Played]) -> list[Difference]:
    return differences(real, simulated)


def test_every_difference_is_in_the_ledger(found: list[Difference]) -> None:
    unlisted = unlisted_of(found)
    assert not unlisted, f"{len(unlisted)} (seed {SEED})\n" + "\n".join(map(str, unlisted[:20]))


@pytest.mark.parametrize("entry", ledger(), ids=lambda entry: entry.id)
def test_every_entry_of_the_ledger_still_occurs(found: list[Difference], entry: Entry) -> None:
    """An obsolete entry could hide a future difference."""
    assert entry.reason.strip()
    for pattern in entry.where:
        one = Entry(id=entry.id, where=(pattern,), reason=entry.reason)
        assert any(one.covers(each.place) for each in found), f"{pattern} does not differ any more"


@pytest.mark.parametrize("real", ["in the base"], indirect=True, scope="module")
@pytest.mark.parametrize(
    "name",
    [
        "dedup ignores the scope",
        "tags are any-of",
        "a patch leaves the text",
        "adding tags ignores If-Match",
        "vector: absent is not manual",
        "a name changes",
    ],
)
def test_a_broken_simulator_differs(real: list[Played], name: str) -> None:
    (mutant,) = (each for each in MUTANTS if each.name == name)
    with mutant.broken():
        assert unlisted_of(differences(real, play(simulator())))


def test_a_history_repeats_under_its_seed() -> None:
    assert list(Story(SEED).steps(50)) == list(Story(SEED).steps(50))
