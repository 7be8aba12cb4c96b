"""The audit log of a server: each call of a tool, and each refused request."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_config.audit import AuditSettings
from kb_config.audit_chains import check, entries
from kb_config.settings import SettingsError
from kb_contracts.access.reach import Access
from kb_server.access.grants import Grant
from kb_server.observability import auditing
from kb_server.tool import Call


def test_calls_and_refusals_are_lines_of_one_chain(tmp_path: Path) -> None:
    call = Call("c1", "digest", "10.0.0.9", grant=Grant(Access("ann")))
    call.log["result_count"] = 3
    with auditing.writing(AuditSettings(audit=True), tmp_path):
        auditing.note_call("kb_search", None, call, None)
        auditing.note_call("kb_get", "document_not_found", Call("c2", "digest"), 42)
        auditing.note_refusal("unauthorized", "10.0.0.8")
    _, search, missing, refused, _ = entries(tmp_path / "audit")
    assert (search.part, search.action, search.outcome, search.who) == ("server", "kb_search", "ok", "ann")
    assert (search.address, search.found, search.correlation_id) == ("10.0.0.9", 3, "c1")
    assert (missing.outcome, missing.documents) == ("document_not_found", ["42"])
    assert (refused.action, refused.outcome, refused.address) == ("request", "unauthorized", "10.0.0.8")
    assert check(tmp_path / "audit") == []


def test_without_the_setting_nothing_is_written(tmp_path: Path) -> None:
    with auditing.writing(AuditSettings(), tmp_path):
        auditing.note_call("kb_search", None, Call("c", "digest"), None)
        auditing.note_refusal("unauthorized", "")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a file")
    with (
        pytest.raises(SettingsError, match="KB_AUDIT_FOLDER"),
        auditing.writing(AuditSettings(audit=True), tmp_path),
    ):
        pass
