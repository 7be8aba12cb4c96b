"""`examples/session_note.py`, run as Claude Code runs a hook."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.patience import COMMAND_SECONDS
from tests.support.stack import ROOT
from tests.unit.cli.conftest import Kb

pytestmark = pytest.mark.process


def line(kind: str, *texts: str, **members: bool) -> dict[str, object]:
    content = [{"type": "text", "text": text} for text in texts] or [{"type": "tool_use", "name": "Bash"}]
    return {
        "type": kind,
        "message": {"content": content if kind == "assistant" else "".join(texts)},
        **members,
    }


def test_a_conversation_is_one_note_however_often_it_ends(kb: Kb, tmp_path: Path) -> None:
    def end(*lines: dict[str, object]) -> None:
        transcript = tmp_path / "transcript.jsonl"
        transcript.write_text("\n".join(map(json.dumps, lines)), "utf-8")
        event = json.dumps({"session_id": "s1", "transcript_path": str(transcript)})
        hook = [sys.executable, str(ROOT / "examples/session_note.py"), sys.executable, "-m", "kb_cli.main"]
        subprocess.run(hook, input=event, text=True, check=True, timeout=COMMAND_SECONDS)

    asked = line("user", "Why does\nthe granite build fail?")
    end(line("user", "a caveat", isMeta=True), asked, line("assistant"))
    assert kb.json("get", "--tags", "session")["documents"] == []
    end(
        asked,
        line("assistant", "Looking."),
        line("assistant"),
        line("assistant", "--- The ö cache was stale."),
    )
    end(
        asked,
        line("assistant", "The cache was stale."),
        line("user", "Fix it"),
        line("assistant", "Fixed in obsidian."),
    )
    get = ("get", "--tags", "session")
    (document,) = eventually(lambda: kb.json(*get)["documents"])
    text = eventually(lambda: kb("get", str(document["id"]))[1], lambda shown: "obsidian" in shown)
    assert "- Why does the granite build fail?\n- Fix it\n" in text
    assert text.rstrip().endswith("Fixed in obsidian.")
    (document,) = kb.json(*get)["documents"]
    assert (document["title"], document["tags"]) == (
        "Why does the granite build fail?",
        ["collection:memory", "session"],
    )
