"""Access scopes, which narrowing can only reduce."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.access.reach import ACCESS, RIGHTS, Access, Reach, access_from, access_header
from kb_contracts.api.errors import EngineError

_TAGS = ("collection:a", "collection:ab", "collection:b", "stone", "größe", "collection:")
_tags = st.frozensets(st.sampled_from(_TAGS))
_reaches = st.builds(Reach, _tags, _tags)
_rights = st.frozensets(st.sampled_from(sorted(RIGHTS)))
_accesses = st.builds(Access, st.text(max_size=5), _rights, st.none() | _reaches)


def _has(access: Access, tag: str) -> bool:
    return access.reach is None or access.reach.has(tag)


@given(_accesses, _accesses)
def test_narrowed_access_is_the_intersection_of_both(one: Access, other: Access) -> None:
    both = one.narrowed(other)
    assert both.rights == one.rights & other.rights
    for tag in (*_TAGS, "collection:abc"):
        assert _has(both, tag) == (_has(one, tag) and _has(other, tag)), tag


@given(_accesses)
def test_an_access_comes_out_of_its_header_as_it_went_in(access: Access) -> None:
    header = access_header(access)
    assert header.isascii()
    assert access_from(header) == access


@pytest.mark.parametrize(
    "header", ["", "[]", "{", '{"rights": ["fly"]}', '{"colour": "red"}', "x" * 20_000, "\ud800"]
)
def test_a_header_that_is_none_is_refused_by_its_name(header: str) -> None:
    with pytest.raises(EngineError) as raised:
        access_from(header)
    assert raised.value.kind.code == "invalid_parameter"
    assert ACCESS in str(raised.value)


def test_tags_of_collections_are_changed_within_the_reach_alone() -> None:
    reach = Reach(frozenset({"collection:memory"}), frozenset({"collection:team-"}))
    assert reach.may_change("collection:team-a")
    assert reach.may_change("feedback")
    assert not reach.may_change("collection:documents")
    assert reach.admits(["x", "collection:memory"])
    assert not reach.admits(["x", "collection:documents"])
    assert not Reach().admits(["collection:memory"])
