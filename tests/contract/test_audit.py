"""The engine's audit log of requests: caller, operation and documents, without any texts."""

from __future__ import annotations

from pathlib import Path

import httpx

from kb_config.audit import AuditSettings
from kb_config.audit_chains import Entry, chains, check, entries
from kb_contracts.access.key_file import KeyFile
from kb_contracts.access.keys import LOCAL
from kb_contracts.access.local import local_token
from kb_contracts.access.reach import ACCESS, RIGHTS, Access, Reach, access_header
from kb_contracts.api.ragler import USER_ID
from tests.support.engines import API_KEY, client_of, engine
from tests.support.patience import ANSWER_SECONDS

WORDS = "granite quarry of nobody's business"


def _lines(folder: Path) -> list[Entry]:
    return [entry for entry in entries(folder) if not entry.action.startswith("log ")]


def test_each_request_is_a_line_and_no_text_is_in_any(tmp_path: Path) -> None:
    with engine(tmp_path, audit=AuditSettings(audit=True)) as url:
        with client_of(f"{url}/api/v1") as http:
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
    assert (hidden.who, hidden.documents, deleted.documents) == ("reader", [uid], [number, uid])
    assert (stranger.who, stranger.address) == ("", "127.0.0.1")
    assert check(tmp_path / "audit") == []
    assert [entry.action for entry in entries(tmp_path / "audit")][-1] == "log closed"
    for files in chains(tmp_path / "audit").values():
        assert all(b"granite" not in file.read_bytes() for file in files)


def _whose(folder: Path) -> list[tuple[str, str]]:
    """The caller and the key of each line."""
    return [(line.who, str(line.detail.get("key", ""))) for line in _lines(folder)]


def _ask(url: str, token: str, access: str = "") -> int:
    """Return the status of a request with a key, and with the access that it claims."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {ACCESS: access} if access else {}
    return httpx.get(f"{url}/api/v1/tags", headers=headers, timeout=ANSWER_SECONDS, verify=False).status_code


def test_only_a_key_with_all_rights_may_name_the_caller_in_the_audit(tmp_path: Path) -> None:
    """A server does so with the engine's key, or with an unrestricted key; further keys cannot."""
    file = KeyFile(tmp_path / "keys.json")
    _, server = file.create("server", rights=RIGHTS)
    _, reader = file.create("reader", rights=frozenset({"read"}))
    _, team = file.create("team", rights=RIGHTS, collections=("memory",))
    ann = access_header(Access("ann"))
    with engine(tmp_path, audit=AuditSettings(audit=True)) as url:
        for token in (API_KEY, server, reader, team):
            assert _ask(url, token, ann) == _ask(url, token) == 200
        assert _ask(url, reader, access_header(Access("ann", frozenset()))) == 403
        assert _ask(url, team, "{") == 422
    assert _whose(tmp_path / "audit") == [
        ("ann", ""),
        ("", ""),
        ("ann", "server"),
        ("server", ""),
        *[("reader", "")] * 2,
        *[("team", "")] * 2,
        ("reader", ""),
        ("team", ""),
    ]


def test_without_an_engine_key_only_the_local_token_may_name_the_caller(tmp_path: Path) -> None:
    with engine(tmp_path, audit=AuditSettings(audit=True), api_key="") as url:
        for token in ("", "anything", local_token(tmp_path / "engine")):
            assert _ask(url, token, access_header(Access("ann"))) == 200
    assert _whose(tmp_path / "audit") == [("", ""), ("", ""), ("ann", LOCAL)]


def test_without_the_setting_there_is_none(tmp_path: Path) -> None:
    with engine(tmp_path) as url:
        assert _ask(url, API_KEY) == 200
    assert not (tmp_path / "audit").exists()
