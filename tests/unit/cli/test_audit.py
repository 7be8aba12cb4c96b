"""`kb audit`: filters of lines, saved heads of the chain, and a chain broken by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kb_cli.main import main
from kb_cli.output import Exit
from kb_config.audit import AuditLog
from kb_config.audit_chains import chains


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    audit = AuditLog(tmp_path / "audit", "engine")
    audit.write("deleteDocument", who="ann", documents=["u1"], address="10.0.0.1", correlation_id="c1")
    audit.write("search", who="ben", found=4)
    audit.write("getDocument", "document_not_found", who="ben")
    return tmp_path / "audit"


def _kb(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["audit", *arguments])
    return status, capsys.readouterr().out


def test_audit_lines_are_filtered_by_caller_and_action(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = _kb(capsys, "--folder", str(folder), "--who", "ben")
    assert status == Exit.OK
    header, *rows = out.splitlines()
    assert header.split("\t")[:4] == ["at", "part", "who", "action"]
    assert [row.split("\t")[3:6] for row in rows] == [
        ["search", "ok", "4 found"],
        ["getDocument", "document_not_found", ""],
    ]
    _, out = _kb(capsys, "--folder", str(folder), "--document", "u1", "--json")
    assert [(line["action"], line["address"]) for line in json.loads(out)] == [("deleteDocument", "10.0.0.1")]
    assert len(json.loads(_kb(capsys, "--folder", str(folder), "--limit", "2", "--json")[1])) == 2


def test_a_chain_broken_by_hand_is_found(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, known = _kb(capsys, "--folder", str(folder), "--heads")
    (tmp_path / "heads.json").write_text(known)
    check = ("--folder", str(folder), "--check", "--known", str(tmp_path / "heads.json"))
    assert _kb(capsys, *check) == (Exit.OK, "1 chain, unbroken\n")
    ((file,),) = chains(folder).values()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]))
    assert _kb(capsys, "--folder", str(folder), "--check")[0] == Exit.OK
    status, out = _kb(capsys, *check)
    assert (status, "line 4: the end is missing: there were 4 lines" in out) == (Exit.FAILED, True)
    file.write_bytes(b"".join(lines).replace(b'"ann"', b'"eve"'))
    status, out = _kb(capsys, *check)
    assert (status, "line 2: it was changed" in out) == (Exit.FAILED, True)


def test_without_an_audit_log_the_command_names_the_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "--home", str(tmp_path)]) == Exit.FAILED
    assert "KB_AUDIT=true" in capsys.readouterr().err
    assert main(["audit", "--known", "x"]) == Exit.USAGE


def test_a_file_of_heads_that_is_none_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for content in (b"{}", b'[{"chain": "\xff"}]'):
        (tmp_path / "heads.json").write_bytes(content)
        check = ["audit", "--folder", str(folder), "--check", "--known", str(tmp_path / "heads.json")]
        assert main(check) == Exit.USAGE
        assert "heads.json: not the output of `kb audit --heads`" in capsys.readouterr().err
