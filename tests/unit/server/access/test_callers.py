"""From a token to the rights of its sender, and from those to the available tools."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kb_contracts.access.key_file import KeyFile, rights_of
from kb_contracts.access.keys import KeyRing, Quotas
from kb_contracts.access.reach import RIGHTS, Access
from kb_server.access.grants import EVERYBODY, Callers, Grant, grant_of
from kb_server.access.quotas import FileMeter
from mcp_aiohttp.protocol.caller import NOBODY, Identity, TokenRefused


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


def callers_of(file: KeyFile, key: str = "") -> Callers:
    ring = KeyRing(file.path, {"KB_MCP_API_KEY": key})
    return Callers(ring, FileMeter(file.path.with_name("usage.json")))


async def grant(callers: Callers, token: str) -> Grant | None:
    identity = await callers.authenticate(token)
    return None if identity is None else grant_of(identity)


async def test_a_named_key_carries_what_it_may(file: KeyFile) -> None:
    callers = callers_of(file)
    key, token = file.create(
        "ci", rights=rights_of(["read"]), collections=("a",), toolsets=("kb",), quotas=Quotas(bytes_per_day=1)
    )
    found = await grant(callers, token)
    assert found is not None
    assert (found.access, found.toolsets, found.quotas) == (key.access, {"kb"}, key.quotas)
    assert found.is_one_caller
    assert found.meter is not None
    assert await grant(callers, token) is found, "made once"
    assert await grant(callers, "guess") is None


async def test_the_key_of_the_settings_may_everything_and_is_nobody_in_particular(file: KeyFile) -> None:
    found = await grant(callers_of(file, " secret\n"), "secret")
    assert found == Grant(Access("KB_MCP_API_KEY", RIGHTS))


async def test_why_a_key_opens_nothing_is_said(file: KeyFile) -> None:
    callers = callers_of(file)
    _, revoked = file.create("revoked", rights=rights_of(["read"]))
    file.revoke("revoked")
    _, expired = file.create(
        "expired", rights=rights_of(["read"]), expires=datetime.now(UTC) - timedelta(seconds=1)
    )
    for token, words in ((revoked, "was revoked"), (expired, "has expired")):
        with pytest.raises(TokenRefused, match=words) as refused:
            await callers.authenticate(token)
        assert not refused.value.is_guess


def test_messages_name_the_kind_of_key_in_use(file: KeyFile) -> None:
    callers = callers_of(file, "secret")
    assert (callers.name, callers.is_needed) == ("KB_MCP_API_KEY", True)
    file.create("ci", rights=rights_of(["read"]))
    assert callers.name == "key"
    assert not callers_of(KeyFile(file.path.with_name("none.json"))).is_needed


def test_whoever_the_hosting_does_not_know_further_may_everything() -> None:
    assert grant_of(NOBODY) is EVERYBODY
    assert grant_of(Identity("key")) == Grant(Access("key"))


@pytest.mark.parametrize(
    ("grant", "words"),
    [
        (EVERYBODY, ""),
        (Grant(Access("a", frozenset({"read"}))), "may not write"),
        (Grant(Access("a"), frozenset({"ragler"})), "may not use the toolset kb"),
        (Grant(Access("a"), frozenset({"kb"})), ""),
    ],
)
def test_a_refusal_says_what_is_missing(grant: Grant, words: str) -> None:
    found = grant.refusal("write", "kb")
    assert words in found
    assert bool(words) == bool(found)
