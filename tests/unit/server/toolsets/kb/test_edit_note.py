"""`kb_edit_note`: a part of a note is changed and the rest stays, even with concurrent changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kb_contracts.api import models as m
from kb_contracts.semantics.headings import headings
from kb_server.note_edits import appended, replaced, section_replaced
from kb_server.tool import ToolError
from tests.support.server_fixtures import JumpingClock, ToolCaller, calling
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


async def test_a_refused_edit_leaves_the_note_unchanged(
    engine: SimulatedEngine, tools: ToolCaller, subtests: pytest.Subtests
) -> None:
    engine.add(text=NOTE)
    engine.add(text="a file", doc_type="text")
    rows: tuple[tuple[dict[str, Any], str], ...] = (
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
    )
    for arguments, error in rows:
        with subtests.test(arguments=str(arguments)[:80]):
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


async def test_concurrent_appends_are_all_kept(engine: SimulatedEngine, tools: ToolCaller) -> None:
    """Appends through one server do not conflict: each succeeds at its first attempt."""
    engine.add(text="begin")
    lines = [f"line {number}" for number in range(20)]
    await asyncio.gather(*(tools.ok("kb_edit_note", document_id=1, append=line) for line in lines))
    assert sorted(text(engine).splitlines()) == sorted(["begin", *lines])
    assert len(engine.journal.requests("patchNote")) == len(lines)


@pytest.fixture
async def patient(engine: SimulatedEngine, tmp_path: Path) -> AsyncIterator[ToolCaller]:
    """The tools, with pauses that take no time."""
    async with calling(engine, tmp_path, clock=JumpingClock().clock()) as tools:
        yield tools


async def test_an_edit_is_tried_while_others_are_faster(engine: SimulatedEngine, patient: ToolCaller) -> None:
    engine.add(text="begin")
    overtaking = iter(range(20))

    async def overtaken(make: Any) -> Any:
        if next(overtaking, None) is not None:
            engine.edit(title=f"Edited {engine.document().version}")
        return await make()

    patient.around["patchNote"] = overtaken
    await patient.ok("kb_edit_note", document_id=1, append="x")
    assert text(engine) == "begin\nx"


async def test_an_edit_that_loses_every_race_says_so(engine: SimulatedEngine, patient: ToolCaller) -> None:
    engine.add(text="begin")

    async def overtaken(make: Any) -> Any:
        engine.edit(title=f"Edited {engine.document().version}")
        return await make()

    patient.around["patchNote"] = overtaken
    refused = await patient.refused("kb_edit_note", document_id=1, append="x")
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
        with pytest.raises(ToolError, match="in the note"):
            replaced(before, old, new)
        return
    start = before.index(old)
    assert replaced(before, old, new) == before[:start] + new + before[start + len(old) :]


KEYS = "## Keys\nroot key is in the safe\n"


@pytest.mark.parametrize(
    ("before", "rest"),
    [
        ("## Setup\nRun:\n\n```pip install kb```\n\n", KEYS),
        ("## Setup\n- ```sh\n  ## no\n  ```\n\n", KEYS),
        ("# Setup\n`kb up` restarts\n\n", "Passwords\n=========\nin the safe\n"),
        ("Setup\n---\nold\n\n", "Passwords\n---------\nin the safe\n"),
        ("## Setup ##\n~~~sh ~~~\n```\n## no\n~~~~\n\n", KEYS),
        ("## Setup\r\nold\r\n\r\n", KEYS.replace("\n", "\r\n")),
        ("## Setup\nold\n\n---\n\nold\u2028## old\n### deeper\n    ## code\n\n", KEYS),
        ("---\ntitle: x\n# no\n---\n## Setup\nold\n\n", KEYS),
    ],
)
def test_a_section_ends_at_the_next_one(before: str, rest: str) -> None:
    after = section_replaced(before + rest, "Setup", "Run `make run`.")
    assert after.endswith(f"\n\nRun `make run`.\n\n{rest}")
    assert "old" not in after


PIECES = [
    "words", "", "```", "```sh", "~~~", "``` `x` ```", "# A", "## B #", "   ### C", "    # code", "T\n===",
    "T\n---", "one\ntwo\n---", "---", "- item", "> ```", "> # q", "- ```", "  ```", "1. ```", "\u2028# D",
]  # fmt: skip
LINES = st.lists(st.sampled_from(PIECES), max_size=12)
MARKDOWN = st.builds(lambda lines, end: end.join(lines), LINES, st.sampled_from(["\n", "\r\n"]))


@given(MARKDOWN, MARKDOWN, MARKDOWN)
def test_replacing_a_section_keeps_the_text_before_and_after_it(before: str, old: str, behind: str) -> None:
    """Sections depend on the whole text: `old` may open a fence that covers a part of `behind`."""
    text = f"{before}\n\n# Section\n{old}\n\n{behind}"
    there = list(headings(text))
    places = [place for place, each in enumerate(there) if each.title == "Section"]
    assume(places)
    place = places[0]
    end = next((each.start for each in there[place + 1 :] if each.level == 1), len(text))
    after = section_replaced(text, "Section", "new")
    rest = text[end:]
    assert after == f"{text[: there[place].end]}\n\nnew\n{chr(10) if rest else ''}{rest}"
    assert [each.title for each in headings(after)] == [
        each.title for each in there if not there[place].end < each.start < end
    ]


def test_a_block_of_code_without_end_does_not_take_the_sections_behind() -> None:
    with pytest.raises(ToolError, match="does not end"):
        section_replaced(f"## Setup\nold\n\n{KEYS}", "Setup", "```sh\nmake run")
    assert section_replaced("## Setup\nold", "Setup", "```sh\nmake run").endswith("make run\n")
