"""Every promise of the contract on the engine and on the simulator, without the generated requests.

`test_suite.py` runs the whole, with them and on PostgreSQL too, as the command `kb verify`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_verify import Status, Target, run
from tests.support.engines import API_KEY, engine, simulator


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["engine", "simulator"])
def test_every_promise_is_kept(name: str, tmp_path: Path) -> None:
    """A promise that could not be shown, because a job was too fast for instance, is not kept either."""
    with engine(tmp_path) if name == "engine" else simulator() as url:
        outcomes = run(Target(url, API_KEY), quick=True).outcomes
    broken = {each.id: f"{each.why}\n{each.details}" for each in outcomes if each.status is not Status.PASSED}
    assert outcomes
    assert broken == {}
