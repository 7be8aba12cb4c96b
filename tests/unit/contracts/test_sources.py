"""Plans of a submission: its outcome, other documents of its source, scopes, and merged tags."""

from __future__ import annotations

import pytest

from kb_contracts.api.models import MAX_TAGS
from kb_contracts.semantics.documents import tags_to_unite
from kb_contracts.semantics.sources import (
    Holder,
    Plan,
    plan,
    scope_after_removal,
    scope_after_tags,
    source_scope,
)

ALONE, OTHER = Holder(1, ["p"], unsourced=False), Holder(2, ["p"], unsourced=False)
SHARED, CLAIMED = Holder(3, ["q", "p"], unsourced=False), Holder(4, ["p"], unsourced=True)


@pytest.mark.parametrize(
    ("path", "twin", "holders", "expected"),
    [
        (None, None, [], Plan("created", None)),
        (None, 7, [], Plan("unchanged", 7)),
        ("p", None, [], Plan("created", None)),
        ("p", 7, [], Plan("created", 7)),
        ("p", 1, [ALONE], Plan("unchanged", 1)),
        ("p", 3, [SHARED], Plan("unchanged", 3)),
        ("p", None, [ALONE], Plan("replaced", 1, swaps=True)),
        ("p", None, [SHARED], Plan("replaced", None, detached=[3])),
        ("p", None, [CLAIMED], Plan("replaced", None, detached=[4])),
        ("p", 7, [ALONE], Plan("replaced", 7, removed=[1])),
        ("p", 7, [SHARED, CLAIMED], Plan("replaced", 7, detached=[3, 4])),
        ("p", 2, [ALONE, OTHER], Plan("replaced", 2, removed=[1])),
        ("p", None, [SHARED, ALONE, OTHER], Plan("replaced", 1, swaps=True, detached=[3], removed=[2])),
    ],
)
def test_a_plan_leaves_others_as_they_are(
    path: str | None, twin: int | None, holders: list[Holder], expected: Plan
) -> None:
    planned = plan(path, twin, holders)
    found = (planned.outcome, planned.target, planned.swaps, [*planned.detached], [*planned.removed])
    assert found == (
        expected.outcome, expected.target, expected.swaps, [*expected.detached], [*expected.removed],
    )  # fmt: skip
    assert planned.documents == {*planned.detached, *planned.removed, planned.target} - {None}


def test_a_source_is_of_a_collection_or_else_of_a_scope() -> None:
    assert source_scope(["a", "collection:x", "b"], "s") == "collection:x"
    assert source_scope(["collection:x", "collection:y"], "") == "collection:y"
    assert source_scope(["a"], "s") == "s"


def test_the_scope_of_a_collection_follows_its_document() -> None:
    assert scope_after_tags("collection:x", ["a", "collection:y"]) == "collection:y"
    assert scope_after_tags("collection:x", ["a"]) == "collection:x"
    assert scope_after_tags("s", ["collection:y"]) == "s"
    assert scope_after_removal("collection:y", "collection:y", ["collection:x", "a"]) == "collection:x"
    assert scope_after_removal("collection:y", "collection:y", ["a"]) == "collection:y"
    assert scope_after_removal("collection:y", "a", ["collection:x", "collection:y"]) == "collection:y"
    assert scope_after_removal("s", "s", ["collection:x"]) == "s"


def test_tags_are_united_up_to_as_many_as_one_submission_may_have() -> None:
    present = [f"t{number}" for number in range(MAX_TAGS - 1)]
    assert tags_to_unite(present, ["x", "t0", "y"]) == ["x"]
    assert tags_to_unite([*present, "x", "y"], ["z"]) == []
