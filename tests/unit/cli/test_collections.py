"""`kb collections` against a real engine: what is listed, shown and described."""

from __future__ import annotations

import pytest

from kb_cli.exits import Exit
from kb_contracts.api.ragler import collection_id
from tests.unit.cli.conftest import Kb


def test_collections_are_listed_and_shown(kb: Kb) -> None:
    """One by its name and by its id; into a pipe as lines of fields."""
    kb.note("granite quarry", "--collection", "stones")
    (listed,) = [each for each in kb.json("collections")["collections"] if each["name"] == "stones"]
    assert (listed["chunk_count"], listed["id"]) == (1, collection_id("stones"))
    shown = kb.json("collections", "stones")
    assert kb.json("collections", listed["id"]) == shown
    assert shown["statistics"]["total_tokens"] > 0
    status, out, _ = kb("collections", "stones")
    assert status == Exit.OK
    assert dict(line.split("\t") for line in out.splitlines())["chunks"] == "1"


def test_a_description_is_said_bit_by_bit(kb: Kb) -> None:
    """What is not said anew stays; a name that nobody uses is one from then on."""
    first = kb.json(
        "collections", "Field notes", "--describe", "From outside", "--created-by", "ann@example.com"
    )
    assert (first["id"], first["created_by"]) == (collection_id("Field notes"), "ann@example.com")
    second = kb.json("collections", "Field notes", "--audience", "walkers", "--audience", "climbers")
    assert (second["description"], second["target_audience"]) == ("From outside", ["walkers", "climbers"])
    third = kb.json("collections", first["id"], "--scenario", "rain")
    assert (third["target_audience"], third["usage_scenarios"]) == (["walkers", "climbers"], ["rain"])
    assert third["created_by"] == "ann@example.com"
    _, out, _ = kb("collections", "Field notes")
    assert "walkers; climbers" in out


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("nothing",), Exit.NOT_FOUND, "nothing"),
        (("--describe", "x"), Exit.USAGE, "name the collection"),
        (("stones", "--created-by", "ann"), Exit.USAGE, "created_by"),
        (("a/b", "--describe", "x"), Exit.USAGE, "name"),
    ],
)
def test_what_does_not_fit_is_one_line(kb: Kb, arguments: tuple[str, ...], status: Exit, told: str) -> None:
    before = kb.json("collections")
    ended, out, error = kb("collections", *arguments)
    assert (ended, out) == (status, "")
    assert told in error
    assert len(error.splitlines()) == 1
    assert kb.json("collections") == before
