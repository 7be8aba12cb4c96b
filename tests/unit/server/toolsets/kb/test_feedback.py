"""`kb_feedback`, and `kb_search`'s explanation of a score with feedback."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kb_server.toolsets.kb.search import explained
from tests.support.contract_objects import explanation_with, ranking_parts_with
from tests.support.server_fixtures import ToolCaller
from tests.support.simulated_engine import SimulatedEngine


@pytest.mark.requirement("R29")
async def test_one_caller_is_one_voice(engine: SimulatedEngine, tools: ToolCaller) -> None:
    """Its last rating counts; the server sends the caller's name to the engine."""
    engine.add()
    answers = []
    for caller, signal in (("ann", "useful"), ("ann", "useful"), ("ann", "not_useful"), ("bob", "useful")):
        tools.user = caller
        answers.append(await tools.ok("kb_feedback", document_id=1, signal=signal))
    assert [(each["voices"], each["useful"], each["not_useful"]) for each in answers] == [
        (1, 1, 0),
        (1, 1, 0),
        (1, 0, 1),
        (2, 1, 1),
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"document_id": 7, "signal": "useful"}, "document_not_found"),
        ({"document_id": 1}, "missing_required_parameter"),
        ({"document_id": 1, "signal": "great"}, "invalid_parameter"),
    ],
)
async def test_invalid_feedback_is_refused(
    engine: SimulatedEngine, tools: ToolCaller, arguments: dict[str, Any], error: str
) -> None:
    engine.add()
    assert (await tools.refused("kb_feedback", **arguments))["error"] == error


@pytest.mark.requirement("R27", "R30")
def test_an_explanation_has_the_parts_and_weights_of_a_final_score() -> None:
    """If the engine sends one; a search of this tool requests none."""
    plain = explanation_with()
    parts = ranking_parts_with(semantic=0.5, recency=1.0, reputation=0.4, feedback=0.25)
    assert "recency" not in explained(plain)
    assert explained(msgspec.structs.replace(plain, ranking=parts)) == explained(plain) | {
        "semantic": 0.5, "weight_semantic": 0.7, "recency": 1.0, "weight_recency": 0.15,
        "reputation": 0.4, "weight_reputation": 0.1, "feedback": 0.25, "weight_feedback": 0.05,
    }  # fmt: skip
