"""Every promise of the contract on the engine, without the generated requests.

`test_suite.py` runs the complete suite, as the command `kb verify`, on PostgreSQL.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_verify import Status, Target, run
from tests.contract.conftest import MOST_TOO_FAST, is_too_fast
from tests.support.engines import API_KEY, engine

pytestmark = pytest.mark.process


def test_every_promise_is_kept(tmp_path: Path) -> None:
    """A promise that was not shown counts as broken, but for the few whose jobs ended too early."""
    with engine(tmp_path) as url:
        outcomes = run(Target(url, API_KEY), quick=True).outcomes
    broken = [each for each in outcomes if not (each.status is Status.PASSED or is_too_fast(each))]
    assert outcomes
    assert {each.id: f"{each.why}\n{each.details}" for each in broken} == {}
    assert len([each for each in outcomes if is_too_fast(each)]) <= MOST_TOO_FAST
