"""Lists in remarks."""

from __future__ import annotations

import pytest

from kb_readers.remarks import names_listed


@pytest.mark.parametrize(
    ("count", "end"),
    [(1, "a0"), (50, "a48, a49"), (51, "a48, a49 and 1 more"), (2_050, "a49 and 2,000 more")],
)
def test_of_many_names_the_first_are_listed_and_the_others_counted(count: int, end: str) -> None:
    listed = names_listed([f"a{number}" for number in range(count)])
    assert listed.endswith(end)
    assert listed.count(",") - listed.count(",000") == min(count, 50) - 1
