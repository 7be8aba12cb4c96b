"""Sessions of the pages: signed, limited in time, and tied to a valid key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kb_contracts.access.key_file import KeyFile, rights_of
from kb_contracts.access.keys import KeyRing
from kb_server.access.grants import EVERYBODY
from kb_server.pages.sessions import SESSION_SECONDS, Sessions

KEY = "secret"
NOW = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> list[float]:
    return [1_000.0]


def ring(key: str = KEY) -> KeyRing:
    return KeyRing(None, {"KB_MCP_API_KEY": key})


@pytest.fixture
def sessions(clock: list[float]) -> Sessions:
    return Sessions(ring(), now=lambda: clock[0])


def begun(sessions: Sessions, key: str = KEY) -> str:
    session = sessions.login(key)
    assert session is not None
    return session


def test_a_session_lasts_a_week(sessions: Sessions, clock: list[float]) -> None:
    session = begun(sessions)
    clock[0] += SESSION_SECONDS - 1
    assert sessions.grant(session) is not None
    clock[0] += 1
    assert sessions.grant(session) is None


def test_a_session_is_of_one_key_and_of_every_worker_that_has_it(sessions: Sessions) -> None:
    session = begun(sessions)
    found = Sessions(ring(" secret\n"), now=lambda: 1_000.0).grant(session)
    assert found is not None
    assert found.name == "KB_MCP_API_KEY"
    assert Sessions(ring("other"), now=lambda: 1_000.0).grant(session) is None
    assert Sessions(ring(""), now=lambda: 1_000.0).grant(session) is None


def test_sessions_without_a_key_end_once_a_key_is_set() -> None:
    session = Sessions(ring(""), now=lambda: 1_000.0).begin()
    assert Sessions(ring(""), now=lambda: 1_000.0).grant(session) == EVERYBODY
    assert Sessions(ring(), now=lambda: 1_000.0).grant(session) is None


def test_where_an_issuer_is_set_a_session_wants_a_key_that_there_may_not_be() -> None:
    sessions = Sessions(ring(""), now=lambda: 1_000.0, has_issuer=True)
    assert sessions.needs_login
    assert not sessions.can_login
    assert sessions.grant(Sessions(ring(""), now=lambda: 1_000.0).begin()) is None
    assert sessions.login("") is None


def test_sessions_of_anybody_are_of_one_server() -> None:
    one, other = (Sessions(ring(""), now=lambda: 1_000.0, secret=secret) for secret in ("one", "other"))
    assert one.grant(one.begin()) == EVERYBODY
    assert other.grant(one.begin()) is None


@pytest.mark.parametrize("forged", ["", ".", "..", "9999999999.00.", "a.b.c", "9" * 5_000, "é.ü.ß", "\udcff"])
def test_a_forged_session_grants_nothing(sessions: Sessions, forged: str) -> None:
    assert sessions.grant(forged) is None
    assert sessions.grant(f"{forged}.KB_MCP_API_KEY.x") is None
    assert Sessions(ring("")).grant(forged) is None


def test_a_session_cannot_be_prolonged_or_made_another_keys(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    _, mine = file.create("mine", rights=rights_of(["read"]))
    file.create("theirs", rights=rights_of(["read", "write"]))
    sessions = Sessions(KeyRing(file.path), now=lambda: 1_000.0)
    expiry, nonce, name, signature = begun(sessions, mine).split(".")
    assert sessions.grant(f"{expiry}.{nonce}.{name}.{signature}") is not None
    assert sessions.grant(f"{int(expiry) + 1}.{nonce}.{name}.{signature}") is None
    assert sessions.grant(f"{expiry}.{nonce}.theirs.{signature}") is None


def test_a_session_ends_with_its_key(tmp_path: Path) -> None:
    now = [NOW]
    file = KeyFile(tmp_path / "keys.json", now=lambda: now[0])
    sessions = Sessions(KeyRing(file.path, now=lambda: now[0]), now=lambda: 1_000.0)
    tokens = {}
    for name in ("revoked", "rotated", "a.dotted@name", "expiring"):
        expires = NOW + timedelta(hours=1) if name == "expiring" else None
        _, tokens[name] = file.create(name, rights=rights_of(["read"]), expires=expires)
    of = {name: begun(sessions, token) for name, token in tokens.items()}
    assert {name: grant.name for name in of if (grant := sessions.grant(of[name]))} == {n: n for n in of}
    file.revoke("revoked")
    file.rotate("rotated", timedelta(minutes=5))
    assert sessions.grant(of["revoked"]) is None
    assert sessions.grant(of["rotated"]) is not None
    now[0] += timedelta(hours=2)
    assert [name for name in of if sessions.grant(of[name])] == ["a.dotted@name"]


def test_a_key_for_some_toolsets_has_to_name_the_pages(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    _, tools = file.create("tools", rights=rights_of(["read"]), toolsets=("kb",))
    _, both = file.create("both", rights=rights_of(["read"]), toolsets=("kb", "pages"))
    sessions = Sessions(KeyRing(file.path))
    assert sessions.login(tools) is None
    assert "not for pages" in sessions.why_not(tools)
    assert sessions.login(both) is not None
    file.revoke("both")
    assert "was revoked" in sessions.why_not(both)
    assert sessions.why_not("kb_unknown") == ""


def test_a_form_token_is_of_one_session(sessions: Sessions) -> None:
    one, other = begun(sessions), begun(sessions)
    assert sessions.is_form_token(one, sessions.form_token(one))
    assert not sessions.is_form_token(other, sessions.form_token(one))
    assert not sessions.is_form_token("", sessions.form_token(""))
    assert not sessions.is_form_token(one, "")
    assert not sessions.is_form_token(one, one.rpartition(".")[2]), "a signature of a session is no token"


def test_the_key_is_compared_without_white_space(sessions: Sessions) -> None:
    assert sessions.login("secret")
    assert sessions.login("secret ")
    assert not sessions.login("")
    assert not sessions.login("Secret")
    assert not sessions.login("\udcff")
