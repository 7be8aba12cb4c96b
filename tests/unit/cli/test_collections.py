"""Unknown collections are reported, and created only on request; requests for collections are limited."""

from __future__ import annotations

from pathlib import Path

from kb_cli.output import Exit
from tests.unit.cli.conftest import Kb


def test_an_unknown_collection_is_an_error(kb: Kb, tmp_path: Path) -> None:
    """The conventional collections are empty instead of unknown, because an agent may be about to use one."""
    document = str(kb.note("Ferns of the gorge", "--collection", "ferns"))
    for arguments in (
        ("search", "ferns", "--collection", "fern"),
        ("get", "--collection", "fern"),
        ("export", str(tmp_path / "texts"), "--collection", "fern"),
        ("collections", "fern"),
        ("move", document, "fern"),
    ):
        status, out, error = kb(*arguments)
        assert (status, out) == (Exit.NOT_FOUND, ""), arguments
        assert "there is no collection 'fern'; did you mean ferns?" in error
    assert not (tmp_path / "texts").exists()
    assert kb("search", '"nothing of this"', "--collection", "ferns")[0] == Exit.OK
    assert kb("search", '"nothing of this"', "--collection", "workspace")[0] == Exit.OK


def test_a_move_creates_a_collection_only_with_its_flag(kb: Kb) -> None:
    document = str(kb.note("Mosses of the gorge"))
    assert "--new" in kb("move", document, "mosses")[2]
    assert kb("move", document, "mosses", "--new")[:2] == (0, f"Document {document} is in mosses.\n")
    other = str(kb.note("More mosses of the gorge"))
    assert kb("move", other, "mosses")[0] == Exit.OK
