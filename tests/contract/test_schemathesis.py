"""The documents of the contract under `schemathesis run`: the committed files, and no code of ours.

`schemathesis.toml` has the rules that OpenAPI cannot state. `kb verify` generates requests that keep them,
and sends the values at every limit (`test_suite.py`).
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kb_contracts.api.operations import ApiSurface
from kb_contracts.openapi import ABOUT, FOLDER
from tests.support.engines import API_KEY, engine, simulator
from tests.support.patience import ANSWER_SECONDS, SUITE_SECONDS

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
SEED = 1
EXAMPLES = {"engine": 25, "simulator": 10}
PHASES = "examples,fuzzing,stateful"
MAX_EXCEPTIONS = 10


@pytest.fixture(scope="module", params=["engine", "simulator"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """The name and URL of a SQLite engine, or of a simulator, that needs a key."""
    serving = engine(tmp_path_factory.mktemp("home")) if request.param == "engine" else simulator()
    with serving as url:
        yield request.param, url


@pytest.mark.parametrize("surface", ApiSurface)
def test_generated_requests_conform_to_the_document(served: tuple[str, str], surface: ApiSurface) -> None:
    """Every default check."""
    kind, url = served
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("schemathesis"), "run", FOLDER / ABOUT[surface].filename),
            *("--url", url, "--header", f"Authorization: Bearer {API_KEY}"),
            *("--seed", str(SEED), "--max-examples", str(EXAMPLES[kind]), "--generation-database", "none"),
            *("--phases", PHASES, "--continue-on-failure", "--no-color"),
            *("--request-timeout", str(ANSWER_SECONDS), "--suppress-health-check", "too_slow"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]


def test_exceptions_are_few_and_each_has_a_reason() -> None:
    """At most ten tables, each below a comment."""
    text = (ROOT / "schemathesis.toml").read_text("utf-8")
    tables = [paragraph for paragraph in text.split("\n\n") if "\n[" in paragraph]
    assert len(tables) == text.count("\n[") <= MAX_EXCEPTIONS
    assert all(paragraph.startswith("# ") for paragraph in tables)
    assert set(tomllib.loads(text)) == {"phases", "operations"}
