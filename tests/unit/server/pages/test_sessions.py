"""Sessions of the pages: signed, bounded in time, of one key."""

from __future__ import annotations

import pytest

from kb_server.pages.sessions import SESSION_SECONDS, Sessions


@pytest.fixture
def clock() -> list[float]:
    return [1_000.0]


@pytest.fixture
def sessions(clock: list[float]) -> Sessions:
    return Sessions(" secret\n", lambda: clock[0])


def test_a_session_lasts_a_week(sessions: Sessions, clock: list[float]) -> None:
    session = sessions.begin()
    clock[0] += SESSION_SECONDS - 1
    assert sessions.is_valid(session)
    clock[0] += 1
    assert not sessions.is_valid(session)


def test_a_session_is_of_one_key_and_of_every_worker_that_has_it(sessions: Sessions) -> None:
    session = sessions.begin()
    assert Sessions("secret", lambda: 1_000.0).is_valid(session)
    assert not Sessions("other", lambda: 1_000.0).is_valid(session)
    assert not Sessions("", lambda: 1_000.0).is_valid(session)


@pytest.mark.parametrize("forged", ["", ".", "..", "9999999999.00.", "a.b.c", "9" * 5_000, "é.ü.ß", "\udcff"])
def test_what_is_no_session_is_none(sessions: Sessions, forged: str) -> None:
    assert not sessions.is_valid(forged)


def test_a_session_cannot_be_prolonged(sessions: Sessions) -> None:
    expiry, nonce, signature = sessions.begin().split(".")
    assert not sessions.is_valid(f"{int(expiry) + 1}.{nonce}.{signature}")


def test_a_form_token_is_of_one_session(sessions: Sessions) -> None:
    one, other = sessions.begin(), sessions.begin()
    assert sessions.is_form_token(one, sessions.form_token(one))
    assert not sessions.is_form_token(other, sessions.form_token(one))
    assert not sessions.is_form_token(one, "")
    assert not sessions.is_form_token(one, one.rpartition(".")[2]), "a signature of a session is no token"


def test_the_key_is_compared_without_white_space(sessions: Sessions) -> None:
    assert sessions.admits("secret")
    assert sessions.admits("secret ")
    assert not sessions.admits("")
    assert not sessions.admits("Secret")
    assert not sessions.admits("\udcff")
