"""`kb_set_metadata`."""

from __future__ import annotations

import pytest

from tests.support.server_fixtures import ToolCaller
from tests.support.simulated_engine import SimulatedEngine


async def test_metadata_are_replaced_whole(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add("collection:memory", "insurance", metadata={"author": "Ann"})
    answer = await tools.ok("kb_set_metadata", document_id=1, metadata={"source_type": "wiki"})
    assert answer["metadata"] == {"source_type": "wiki"}
    assert (answer["collection"], answer["tags"], answer["version"]) == ("memory", ["insurance"], 2)
    assert engine.document().metadata == {"source_type": "wiki"}


async def test_a_concurrent_change_of_metadata_is_a_version_conflict(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    engine.add(metadata={"author": "Ann"})
    await tools.ok("kb_set_metadata", document_id=1, metadata={}, expected_version=1)
    refused = await tools.refused(
        "kb_set_metadata", document_id=1, metadata={"author": "Bo"}, expected_version=1
    )
    assert (refused["error"], engine.document().metadata) == ("version_conflict", {})


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"document_id": 7, "metadata": {}}, "document_not_found"),
        ({"document_id": 1}, "missing_required_parameter"),
        ({"document_id": 1, "metadata": ["a"]}, "invalid_parameter"),
        ({"document_id": 1, "metadata": {"text": "a" * 65_536}}, "invalid_parameter"),
    ],
)
async def test_invalid_metadata_is_refused(
    engine: SimulatedEngine, tools: ToolCaller, arguments: dict[str, object], error: str
) -> None:
    engine.add(metadata={"author": "Ann"})
    refused = await tools.refused("kb_set_metadata", **arguments)
    assert (refused["error"], engine.document().metadata) == (error, {"author": "Ann"})
