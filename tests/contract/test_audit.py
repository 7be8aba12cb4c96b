"""What an engine writes of requests into its audit log: who asked for what, of which documents; no texts."""

from __future__ import annotations

from pathlib import Path

import httpx

from kb_config.audit import AuditSettings
from kb_config.audit_chains import Entry, chains, check, entries
from kb_contracts.access.reach import ACCESS, Access, Reach, access_header
from kb_contracts.api.ragler import USER_ID
from tests.support.engines import API_KEY, engine

WORDS = "granite quarry of nobody's business"


def _lines(folder: Path) -> list[Entry]:
    return [entry for entry in entries(folder) if not entry.action.startswith("log ")]


def test_each_request_is_a_line_and_no_text_is_in_any(tmp_path: Path) -> None:
    with engine(tmp_path, audit=AuditSettings(audit=True)) as url:
        with httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {API_KEY}"}) as http:
            sent = {"text": WORDS, "title": WORDS, "tags": ["collection:memory"], "source_path": WORDS}
            job = http.post("/jobs", json=sent, headers={USER_ID: "ann", "X-Request-ID": "c1"}).json()
            job = http.get(f"/jobs/{job['id']}", params={"wait": 30}).json()
            uid, number = job["document_uid"], str(job["document_id"])
            http.post("/search", json={"query": WORDS})
            http.get("/documents/404")
            access = Access("reader", frozenset({"read"}), Reach(frozenset({"collection:other"})))
            as_reader = {ACCESS: access_header(access)}
            http.delete(f"/documents/{uid}", headers=as_reader)
            http.get(f"/documents/{uid}", headers=as_reader)
            http.delete(f"/documents/{number}")
            http.get("/documents", headers={"Authorization": "Bearer wrong"})
            http.get(f"{url}/healthz")
        lines = _lines(tmp_path / "audit")
    assert [(line.action, line.outcome) for line in lines] == [
        ("createJob", "ok"),
        ("getJob", "ok"),
        ("search", "ok"),
        ("getDocument", "document_not_found"),
        ("deleteDocument", "forbidden"),
        ("getDocument", "document_not_found"),
        ("deleteDocument", "ok"),
        ("GET /api/v1/documents", "unauthorized"),
    ]
    created, waited, search, missing, refused, hidden, deleted, stranger = lines
    assert (created.user, created.correlation_id, created.address) == ("ann", "c1", "127.0.0.1")
    assert waited.documents == [number, uid]
    assert (search.documents, search.found) == ([uid], 1)
    assert (missing.documents, refused.who, refused.documents) == (["404"], "reader", [uid])
    assert (hidden.who, hidden.documents, deleted.documents) == ("reader", [uid], [number])
    assert (stranger.who, stranger.address) == ("", "127.0.0.1")
    assert check(tmp_path / "audit") == []
    assert [entry.action for entry in entries(tmp_path / "audit")][-1] == "log closed"
    for files in chains(tmp_path / "audit").values():
        assert all(b"granite" not in file.read_bytes() for file in files)


def test_without_the_setting_there_is_none(tmp_path: Path) -> None:
    with engine(tmp_path) as url:
        httpx.get(f"{url}/api/v1/status", headers={"Authorization": f"Bearer {API_KEY}"})
    assert not (tmp_path / "audit").exists()
