"""Every fault of the catalogue against every tool, compared with the committed matrix."""

from __future__ import annotations

import json

import pytest

from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset
from kb_simulator.harness.faults import CATALOGUE
from tests.faults.matrix import DOCUMENT, EXPECTED, LASTS, TRIALS, Matrix, encoded, markdown, matrix

pytestmark = pytest.mark.process

COMMAND = "python -m tests.faults.matrix --write"


def cells(found: Matrix) -> dict[str, str]:
    return {
        f"{fault} {tool} {lasts}": answer
        for fault, row in found.items()
        for tool, both in row.items()
        for lasts, answer in both.items()
    }


def test_every_tool_answers_every_fault_as_the_committed_matrix_says() -> None:
    """Successful answers are true, failures are errors, and nothing is lost or duplicated."""
    committed, found = cells(json.loads(EXPECTED.read_text("utf-8"))), cells(matrix())
    assert set(found) == set(committed), f"write it anew: {COMMAND}"
    changed = {name: (was, found[name]) for name, was in committed.items() if found[name] != was}
    assert changed == {}, f"if this is meant: {COMMAND}"


def test_the_committed_matrix_has_every_fault_every_tool_and_no_wrong_answer() -> None:
    """It is complete, and contains no success with a wrong answer."""
    committed: Matrix = json.loads(EXPECTED.read_text("utf-8"))
    services = Services(ServerSettings())
    tools = [tool.name for name in ("kb", "ragler") for tool in build_toolset(name, services).tools]
    assert list(TRIALS) == tools
    assert list(committed) == list(CATALOGUE)
    assert len(cells(committed)) == len(CATALOGUE) * len(tools) * len(LASTS)
    assert not [name for name, answer in cells(committed).items() if answer.startswith("wrong")]
    assert encoded(committed) == EXPECTED.read_text("utf-8")


def test_the_documentation_shows_the_committed_matrix() -> None:
    committed: Matrix = json.loads(EXPECTED.read_text("utf-8"))
    assert markdown(committed) in DOCUMENT.read_text("utf-8"), COMMAND


def test_a_fault_met_once_is_no_worse_than_one_that_lasts() -> None:
    """If a tool succeeds under a lasting fault, it succeeds under a single one."""
    committed: Matrix = json.loads(EXPECTED.read_text("utf-8"))
    for row in committed.values():
        for both in row.values():
            assert both["lasting"] != "ok" or both["once"] == "ok"
