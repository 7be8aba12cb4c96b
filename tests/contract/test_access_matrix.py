"""The tables in the page on access agree with the engine's behaviour."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_contracts.api.operations import OPERATIONS
from tests.contract.access_matrix import PAGE, TRIES, rows, written
from tests.support.engines import engine


@pytest.mark.process
@pytest.mark.requirement("R44", "R47", "R49")
def test_the_page_lists_the_rights_that_each_operation_needs(tmp_path: Path) -> None:
    """If this fails, write the tables again: `python -m tests.contract.access_matrix`."""
    with engine(tmp_path) as url:
        found = list(rows(url))
    assert TRIES.keys() == {each.id for each in OPERATIONS if not each.public}
    page = PAGE.read_text("utf-8")
    assert written(page, found) == page
