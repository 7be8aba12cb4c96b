"""Every promise of the contract on the engine, without the generated requests.

`test_suite.py` runs the whole, with them, on PostgreSQL with an index in Qdrant, as the command `kb verify`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_verify import Status, Target, run
from tests.support.engines import API_KEY, engine

pytestmark = pytest.mark.process


def test_every_promise_is_kept(tmp_path: Path) -> None:
    """A promise that could not be shown, because a job was too fast for instance, is not kept either."""
    with engine(tmp_path) as url:
        outcomes = run(Target(url, API_KEY), quick=True).outcomes
    broken = {each.id: f"{each.why}\n{each.details}" for each in outcomes if each.status is not Status.PASSED}
    assert outcomes
    assert broken == {}
