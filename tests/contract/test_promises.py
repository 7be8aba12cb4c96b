"""Every promise of the contract on the engine, without the generated requests.

`test_suite.py` runs the complete suite, as the command `kb verify`, on PostgreSQL.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_verify import Status, Target, run
from tests.support.engines import API_KEY, engine

pytestmark = pytest.mark.process


def test_every_promise_is_kept(tmp_path: Path) -> None:
    """A promise that was not shown, for instance because a job was too fast, counts as broken."""
    with engine(tmp_path) as url:
        outcomes = run(Target(url, API_KEY), quick=True).outcomes
    broken = {each.id: f"{each.why}\n{each.details}" for each in outcomes if each.status is not Status.PASSED}
    assert outcomes
    assert broken == {}
