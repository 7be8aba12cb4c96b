"""`kb_feedback`, and `kb_search` where it weighs feedback."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.server_fixtures import ToolCaller
from tests.support.simulated_engine import SimulatedEngine


@pytest.mark.requirement("R29")
async def test_one_caller_is_one_voice(engine: SimulatedEngine, tools: ToolCaller) -> None:
    """Its last rating stands; the engine learns on whose behalf the server asks."""
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
async def test_what_does_not_fit_is_refused(
    engine: SimulatedEngine, tools: ToolCaller, arguments: dict[str, Any], error: str
) -> None:
    engine.add()
    assert (await tools.refused("kb_feedback", **arguments))["error"] == error


@pytest.mark.requirement("R27", "R30")
async def test_a_search_weighs_what_it_is_told_to(engine: SimulatedEngine, tools: ToolCaller) -> None:
    """None named: the usual weights. The parts of a final score stand in its explanation."""
    for number in (1, 2):
        engine.add(text="granite quarry", dedup_scope=str(number), metadata={})
    await tools.ok("kb_feedback", document_id=2, signal="useful")
    plain = await tools.ok("kb_search", query="granite", explain=True)
    assert [each["document_id"] for each in plain["results"]] == [1, 2]
    assert "recency" not in plain["results"][0]["explain"]
    ranked = await tools.ok("kb_search", query="granite", explain=True, ranking_weights={})
    first, second = ranked["results"]
    assert (first["document_id"], second["document_id"]) == (2, 1)
    parts = first["explain"]
    names = ("semantic", "recency", "reputation", "feedback")
    assert [parts[f"weight_{name}"] for name in names] == [0.7, 0.15, 0.1, 0.05]
    total = sum(parts[f"weight_{name}"] * parts[name] for name in names)
    assert first["score"] == pytest.approx(total, abs=1e-5)
    assert parts["feedback"] > second["explain"]["feedback"]


async def test_weights_that_do_not_add_up_are_refused_with_their_sum(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    engine.add()
    refused = await tools.refused("kb_search", query="x", ranking_weights={"semantic": 0.5})
    assert refused["error"] == "invalid_parameter"
    assert "add up to 0.5" in refused["message"]
