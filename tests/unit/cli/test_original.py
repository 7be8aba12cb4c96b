"""`kb get --original`: the file that a document was made from, complete or not at all."""

from __future__ import annotations

from pathlib import Path

from kb_cli.output import Exit
from tests.unit.cli.conftest import Kb


def test_the_file_of_a_document_is_saved(kb: Kb, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Granite\n\n" + "hard and grey " * 1_000)
    kb("add", str(tmp_path / "a.md"))
    (found,) = (each for each in kb.json("get")["documents"] if each["filename"] == "a.md")
    target = tmp_path / "saved.md"
    target.write_bytes(b"before")
    assert kb("get", str(found["id"]), "--original", str(target), "--no-text")[0] == Exit.OK
    assert target.read_bytes() == (tmp_path / "a.md").read_bytes()
    assert kb.json("get", str(found["id"]))["original"] is True
    assert {path.name for path in tmp_path.iterdir()} == {"a.md", "saved.md"}


def test_a_missing_original_leaves_no_file_on_disk(kb: Kb, tmp_path: Path) -> None:
    note = kb.note("granite")
    status, _, error = kb("get", str(note), "--original", str(tmp_path / "out"))
    assert (status, "sent as text" in error) == (Exit.FAILED, True)
    assert kb("get", str(note), "--original", str(tmp_path / "no" / "out"))[0] == Exit.FAILED
    assert kb("get", "--original", str(tmp_path / "out"))[0] == Exit.USAGE
    assert list(tmp_path.iterdir()) == []
