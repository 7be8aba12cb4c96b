"""`kb_edit_note`: a part of a note is changed, and nothing else of it, whoever else changes it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api import models as m
from kb_server.note_edits import appended, replaced, section_replaced
from kb_server.tool import ToolError
from tests.support.server_fixtures import ToolCaller
from tests.support.simulated_engine import SimulatedEngine

BLOCK = "for comparisons\n\n```\n# no heading\n```\n\n"
NOTE = f"# Preferences\n\nconcise\n\n## Tables\n\n{BLOCK}# Work\nat home\n"


def text(engine: SimulatedEngine, number: int = 1) -> str:
    return engine.state.documents.by_id[number].text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"append": "- more"}, NOTE + "- more"),
        ({"old": "concise", "new": "detailed"}, NOTE.replace("concise", "detailed")),
        ({"old": "\n\nconcise", "new": ""}, NOTE.replace("\n\nconcise", "")),
        ({"section": "Tables", "text": "never"}, NOTE.replace(BLOCK, "never\n\n")),
        ({"section": "## Tables", "text": ""}, NOTE.replace(BLOCK, "\n\n")),
        ({"section": "Preferences", "text": "none\n"}, "# Preferences\n\nnone\n\n# Work\nat home\n"),
        ({"section": "Work", "text": "away"}, NOTE.replace("# Work\nat home\n", "# Work\n\naway\n")),
    ],
)  # fmt: skip
async def test_an_edit_leaves_the_rest(
    engine: SimulatedEngine, tools: ToolCaller, arguments: dict[str, str], expected: str
) -> None:
    engine.add("collection:memory", text=NOTE)
    answer = await tools.ok("kb_edit_note", document_id=1, **arguments)
    assert (text(engine), answer["version"], answer["collection"]) == (expected, 2, "memory")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "invalid_parameter"),
        ({"append": "a", "old": "b", "new": "c"}, "invalid_parameter"),
        ({"old": "concise"}, "invalid_parameter"),
        ({"new": "concise"}, "invalid_parameter"),
        ({"section": "Work"}, "invalid_parameter"),
        ({"append": ""}, "invalid_parameter"),
        ({"old": "Concise", "new": "x"}, "text_not_found"),
        ({"old": "e", "new": "x"}, "text_not_unique"),
        ({"section": "no heading", "text": "x"}, "section_not_found"),
        ({"append": "x", "expected_version": 7}, "version_conflict"),
        ({"append": "x", "document_id": 9}, "document_not_found"),
        ({"append": "x", "document_id": 2}, "not_a_note"),
        ({"old": "concise\n\n## Tables\n", "new": "x" * m.MAX_NOTE_CHARS}, "invalid_parameter"),
    ],
)
async def test_what_does_not_fit_changes_nothing(
    engine: SimulatedEngine, tools: ToolCaller, arguments: dict[str, Any], error: str
) -> None:
    engine.add(text=NOTE)
    engine.add(text="a file", doc_type="text")
    refused = await tools.refused("kb_edit_note", **{"document_id": 1, **arguments})
    assert (refused["error"], text(engine), engine.document().version) == (error, NOTE, 1)


async def test_a_section_that_is_not_there_is_answered_with_those_that_are(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    engine.add(text=NOTE)
    refused = await tools.refused("kb_edit_note", document_id=1, section="Play", text="x")
    assert "'Preferences', 'Tables', 'Work'" in refused["message"]


async def test_a_lost_race_with_a_version_says_what_stands_there_now(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    engine.add(text=NOTE)
    engine.edit()
    refused = await tools.refused("kb_edit_note", document_id=1, append="x", expected_version=1)
    assert (refused["current_version"], refused["current_text"]) == (2, NOTE)


async def test_many_who_append_at_once_lose_nothing(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add(text="begin")
    lines = [f"line {number}" for number in range(5)]
    await asyncio.gather(*(tools.ok("kb_edit_note", document_id=1, append=line) for line in lines))
    assert sorted(text(engine).splitlines()) == ["begin", *lines]


async def test_an_edit_that_loses_every_race_says_so(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add(text="begin")

    async def overtaken(make: Any) -> Any:
        engine.edit(title=f"Edited {engine.document().version}")
        return await make()

    tools.around["patchNote"] = overtaken
    refused = await tools.refused("kb_edit_note", document_id=1, append="x")
    assert (refused["error"], text(engine)) == ("version_conflict", "begin")


WORDS = st.text(st.sampled_from("ab #\n\r\u2028"), max_size=40)


@given(WORDS, WORDS)
def test_an_addition_stands_at_the_end(before: str, addition: str) -> None:
    after = appended(before, addition)
    assert after.startswith(before)
    assert after.endswith(addition)


@given(WORDS, WORDS, WORDS)
def test_one_place_is_replaced_or_none(before: str, old: str, new: str) -> None:
    if not old or before.count(old) != 1:
        with pytest.raises(ToolError, match="stand"):
            replaced(before, old, new)
        return
    start = before.index(old)
    assert replaced(before, old, new) == before[:start] + new + before[start + len(old) :]


@given(WORDS, WORDS)
def test_a_section_keeps_what_is_before_and_behind_it(before: str, body: str) -> None:
    after = section_replaced(f"{before}\n\n# Section\nold\n# T\nend", "Section", body)
    assert after.startswith(before)
    assert after.endswith("# T\nend")
