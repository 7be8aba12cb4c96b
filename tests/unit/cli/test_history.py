"""`kb history`: past documents are listed, shown, compared, restored and purged."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_cli.output import Exit
from tests.unit.cli.conftest import Kb


def test_a_replaced_text_is_shown_compared_and_brought_back(kb: Kb) -> None:
    note = str(kb.note("concise\nin English", "--collection", "memory"))
    kb.json("updatenote", note, "detailed\nin English")
    (past,) = kb.json("history", note)["versions"]
    assert (past["version"], past["removed"]) == (1, False)
    assert kb("history", note)[1].count("replaced") == 1
    _, shown, _ = kb("history", note, "1")
    assert shown.endswith("\nconcise\nin English\n")
    assert "memory" in shown
    _, compared, _ = kb("history", note, "1", "--diff")
    assert compared.splitlines()[3:] == ["-concise", "+detailed", " in English"]
    status, words, _ = kb("history", note, "--restore")
    assert (status, "restored to version 1, as version 3" in words) == (Exit.OK, True)
    assert kb.json("get", note)["chunks"][0]["text"] == "concise\nin English"
    assert kb("history", note, "1", "--diff")[1] == "The text is the same.\n"
    kb("history", note, "2", "--restore")
    assert "Deleted 3 versions." in kb("history", note, "--purge")[1]
    assert kb.json("history", note)["total"] == 0


def test_a_long_text_is_shown_whole(kb: Kb, monkeypatch: pytest.MonkeyPatch) -> None:
    note = str(kb.note("granite quarry"))
    kb.json("updatenote", note, "basalt")
    monkeypatch.setattr("kb_contracts.api.operations.MAX_TEXT_SLICE", 4)
    assert kb("history", note, "1")[1].endswith("\ngranite quarry\n")


def test_a_removed_document_is_brought_back(kb: Kb) -> None:
    note = str(kb.note("granite that was removed"))
    uid = kb.json("get", note)["uid"]
    assert kb("rm", note, "--yes")[2] == f"kb history {note} --restore restores it.\n"
    assert uid in [each["uid"] for each in kb.json("history")["versions"]]
    assert "removed" in kb("history", "--limit", "1")[1]
    status, _, error = kb("get", note)
    advice = f"was removed; kb history {note} --restore brings it back\n"
    assert (status, error.endswith(advice)) == (Exit.NOT_FOUND, True)
    kb.json("history", uid, "--restore")
    assert kb.json("get", note)["uid"] == uid
    assert kb("rm", note, "--yes", "--purge")[2] == ""
    status, _, error = kb("history", uid)
    assert (status, "no document" in error) == (Exit.NOT_FOUND, True)


def test_a_file_is_shown_and_not_compared(kb: Kb, tmp_path: Path) -> None:
    file = tmp_path / "stone.md"
    file.write_text("# Stone\n\nGranite.\n")
    kb("add", str(file))
    file.write_text("# Stone\n\nBasalt.\n")
    kb("add", str(file))
    (document,) = kb.json("get", "--source-path", str(file))["documents"]
    number, (past,) = str(document["id"]), kb.json("history", str(document["id"]))["versions"]
    assert "Granite." in kb("history", number, str(past["version"]))[1]
    status, _, error = kb("history", number, str(past["version"]), "--diff")
    assert (status, "only texts of notes" in error) == (Exit.FAILED, True)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--restore",), Exit.USAGE, "name a document"),
        (("1", "1", "--restore", "--diff"), Exit.USAGE, "exclude each other"),
        (("1", "--diff"), Exit.USAGE, "needs a version"),
        (("1", "1", "--purge"), Exit.USAGE, "leave out the version"),
        (("999999",), Exit.NOT_FOUND, "999999"),
        (("{document}", "--restore"), Exit.NOT_FOUND, "no earlier version"),
        (("{document}", "7"), Exit.NOT_FOUND, "the kept ones are: none"),
    ],
)
def test_an_invalid_argument_of_history_is_one_line_of_error(
    kb: Kb, arguments: tuple[str, ...], status: Exit, words: str
) -> None:
    document = kb.note("anything at all")
    ended, out, error = kb("history", *(each.format(document=document) for each in arguments))
    assert (ended, out, error.count("\n")) == (status, "", 1)
    assert words in error
