"""The file of keys: created, read, changed while in use, damaged, and with two writers."""

from __future__ import annotations

import json
import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from kb_contracts.access.key_file import KeyFile, KeyRefused, rights_of
from kb_contracts.access.keys import TOKEN, Key, KeyRing, KeysDamaged, Quotas, token_digest
from kb_contracts.access.local import local_token, make_local_token
from kb_contracts.access.reach import EVERYTHING, RIGHTS, Access, Reach

_START = datetime(2026, 5, 1, 12, tzinfo=UTC)
_READ = rights_of(["read"])


class _Clock:
    def __init__(self) -> None:
        self.now = _START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "keys.json"


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def file(path: Path, clock: _Clock) -> KeyFile:
    return KeyFile(path, now=clock)


def test_a_token_has_the_access_of_its_key(file: KeyFile) -> None:
    ring = KeyRing(file.path)
    _, token = file.create(
        "ci",
        rights=rights_of(["read", "write"]),
        collections=("memory", "team-*"),
        toolsets=("kb",),
        quotas=Quotas(calls_per_minute=60),
    )
    found = ring.find(token)
    assert found is not None
    assert found.access == Access(
        "ci",
        frozenset({"read", "write"}),
        Reach(frozenset({"collection:memory"}), frozenset({"collection:team-"})),
    )
    assert (found.toolsets, found.quotas) == (("kb",), Quotas(calls_per_minute=60))
    assert ring.access_of(token) is found.access
    assert ring.find(token[:-1]) is None


def test_a_key_without_collections_reaches_everything_and_one_with_none_nothing(file: KeyFile) -> None:
    everywhere, _ = file.create("everywhere", rights=_READ)
    nowhere, _ = file.create("nowhere", rights=_READ, collections=())
    assert everywhere.access.reach is None
    assert nowhere.access.reach == Reach()


def test_a_token_is_in_no_file_and_looks_like_one(file: KeyFile) -> None:
    key, token = file.create("ci", rights=_READ)
    assert TOKEN.fullmatch(token)
    assert token.startswith(f"kb_{key.id}_")
    text = file.path.read_text()
    assert token.split("_", 2)[2] not in text
    assert token_digest(token) in text


def test_the_file_is_its_owners_alone(file: KeyFile) -> None:
    file.create("ci", rights=_READ)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    file.path.chmod(0o644)
    file.create("other", rights=_READ)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert sorted(each.name for each in file.path.parent.iterdir()) == ["keys.json", "keys.json.lock"]


def test_a_link_is_followed_and_kept(file: KeyFile, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    file.create("ci", rights=_READ)
    link.symlink_to(file.path)
    KeyFile(link).create("other", rights=_READ)
    assert link.is_symlink()
    assert [key.name for key in file.read()] == ["ci", "other"]


def test_keys_expire(file: KeyFile, clock: _Clock) -> None:
    ring = KeyRing(file.path, now=clock)
    key, token = file.create("ci", rights=_READ, expires=_START + timedelta(hours=1))
    assert ring.find(token) is not None
    clock.now += timedelta(hours=1)
    assert ring.find(token) is None
    assert key.state(clock.now) == "expired"
    with pytest.raises(KeyRefused, match="expired"):
        file.rotate("ci")


def test_the_reason_of_a_refused_token_is_known(file: KeyFile, clock: _Clock) -> None:
    ring = KeyRing(file.path, now=clock)
    _, expiring = file.create("expiring", rights=_READ, expires=_START + timedelta(hours=1))
    _, revoked = file.create("revoked", rights=_READ)
    file.revoke("revoked")
    clock.now += timedelta(hours=1)
    assert ring.find(expiring) is None
    assert [ring.why_not(token) for token in (expiring, revoked, "x")] == ["has expired", "was revoked", ""]


def test_a_revoked_key_opens_nothing_and_the_door_stays_shut(file: KeyFile) -> None:
    ring = KeyRing(file.path)
    assert ring.access_of("") == EVERYTHING
    _, token = file.create("ci", rights=_READ)
    assert ring.find(token) is not None
    file.revoke("ci")
    assert ring.find(token) is None
    assert ring.access_of(token) is None
    assert ring.is_needed
    with pytest.raises(KeyRefused, match="revoked"):
        file.rotate("ci")


def test_a_file_that_loses_its_keys_while_it_is_in_use_changes_nothing(file: KeyFile) -> None:
    ring = KeyRing(file.path)
    _, token = file.create("ci", rights=_READ)
    assert ring.find(token) is not None
    file.path.write_text('{"keys": [], "version": 1}')
    assert ring.find(token) is not None
    assert ring.is_needed
    assert ring.access_of("") is None


def test_keys_without_secrets_shut_the_door_too(file: KeyFile) -> None:
    file.create("ci", rights=_READ)
    document = json.loads(file.path.read_text())
    del document["keys"][0]["secrets"]
    file.path.write_text(json.dumps(document))
    assert KeyRing(file.path).access_of("") is None


def test_a_rotation_ends_the_old_token_at_once(file: KeyFile) -> None:
    ring = KeyRing(file.path)
    key, old = file.create("ci", rights=_READ)
    _, new = file.rotate(key.id)
    assert ring.find(old) is None
    found = ring.find(new)
    assert found is not None
    assert found.id == key.id


def test_a_rotation_may_leave_the_old_token_a_while(file: KeyFile, clock: _Clock) -> None:
    ring = KeyRing(file.path, now=clock)
    _, first = file.create("ci", rights=_READ)
    _, second = file.rotate("ci", timedelta(minutes=10))
    clock.now += timedelta(minutes=5)
    _, third = file.rotate("ci", timedelta(minutes=10))
    assert all(ring.find(token) for token in (first, second, third))
    clock.now += timedelta(minutes=6)
    assert [ring.find(token) is not None for token in (first, second, third)] == [False, True, True]
    clock.now += timedelta(minutes=6)
    assert [ring.find(token) is not None for token in (first, second, third)] == [False, False, True]


def test_the_owner_of_the_data_folder_has_a_key_that_nobody_else_needs(file: KeyFile, path: Path) -> None:
    path.parent.mkdir()
    local = make_local_token(path.parent)
    assert local == make_local_token(path.parent) == local_token(path.parent)
    assert stat.S_IMODE((path.parent / "local.key").stat().st_mode) == 0o600
    ring = KeyRing(path, local=local)
    assert not ring.is_needed
    assert ring.access_of("") == EVERYTHING
    file.create("ci", rights=_READ)
    assert ring.access_of("") is None
    assert ring.access_of(local) == Access("LOCAL")
    assert local_token(path.parent / "elsewhere") == ""


def test_keys_of_settings_are_keys_with_all_rights(path: Path) -> None:
    ring = KeyRing(path, {"KB_API_KEY": " open sesame ", "KB_MCP_API_KEY": ""})
    assert ring.is_needed
    assert not ring.has_file_keys
    assert ring.access_of("open sesame") == Access("KB_API_KEY", RIGHTS)
    assert ring.access_of("") is None
    assert not KeyRing(path, {"KB_API_KEY": " "}).is_needed


@pytest.mark.parametrize("name", ["", "CI", "a b", "a\n", "-a", "anonymous", "x" * 65, "KB_API_KEY"])
def test_names_are_checked(file: KeyFile, name: str) -> None:
    with pytest.raises(KeyRefused):
        file.create(name, rights=_READ)
    assert file.read() == ()


def test_a_name_is_given_once(file: KeyFile) -> None:
    file.create("ci", rights=_READ)
    file.revoke("ci")
    with pytest.raises(KeyRefused, match="rotate"):
        file.create("ci", rights=_READ)


@pytest.mark.parametrize("collections", [("",), ("a*b",), ("**",), ("a,b",), ("a\n",), ("x" * 191,)])
def test_collections_are_checked(file: KeyFile, collections: tuple[str, ...]) -> None:
    with pytest.raises(KeyRefused):
        file.create("ci", rights=_READ, collections=collections)


def test_no_key_names_more_collections_than_a_request_can_carry(file: KeyFile) -> None:
    with pytest.raises(KeyRefused, match="beginnings"):
        file.create("ci", rights=_READ, collections=tuple(f"collection-{number}" for number in range(1_000)))


def test_rights_are_checked(file: KeyFile) -> None:
    with pytest.raises(KeyRefused, match="'fly'"):
        rights_of(["read", "fly"])
    with pytest.raises(KeyRefused, match="needs a right"):
        file.create("ci", rights=frozenset())


def test_revoking_an_unknown_key_is_refused(file: KeyFile) -> None:
    with pytest.raises(KeyRefused, match="kb keys list"):
        file.revoke("ci")
    assert not file.path.exists()


def _damages(document: str) -> list[str]:
    parsed = json.loads(document)
    key = parsed["keys"][0]
    return [
        "",
        document[:-10],
        "[]",
        json.dumps({**parsed, "version": 2}),
        json.dumps({**parsed, "more": 1}),
        json.dumps({"keys": [{**key, "rights": ["fly"]}]}),
        json.dumps({"keys": [{**key, "colections": ["a"]}]}),
        json.dumps({"keys": [{**key, "expires": "2026-05-01T12:00:00"}]}),
        json.dumps({"keys": [key, {**key, "name": "other"}]}),
        json.dumps({"keys": [key, {**key, "id": "01234567"}]}),
        json.dumps({"keys": [key, {**key, "id": "01234567", "name": "other"}]}),
        "[" * 100_000,
        " " * (5 * 1024 * 1024),
    ]


def test_a_damaged_file_is_refused_at_start_and_counts_on_while_in_use(
    file: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    _, token = file.create("ci", rights=_READ)
    whole = file.path.read_text()
    for damaged in _damages(whole):
        ring = KeyRing(file.path)
        file.path.write_text(damaged)
        with pytest.raises(KeysDamaged, match=r"keys\.json"):
            KeyRing(file.path)
        caplog.clear()
        assert ring.find(token) is not None
        assert ring.find(token) is not None
        assert ["damaged" in record.message for record in caplog.records] == [True]
        file.path.write_text(whole)
        assert ring.find(token) is not None
    file.path.write_text("{")
    with pytest.raises(KeysDamaged):
        file.create("other", rights=_READ)
    assert file.path.read_text() == "{"


def test_a_file_that_is_gone_counts_on(file: KeyFile, caplog: pytest.LogCaptureFixture) -> None:
    _, token = file.create("ci", rights=_READ)
    ring = KeyRing(file.path)
    file.path.unlink()
    assert ring.find(token) is not None
    assert ring.access_of("") is None
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_below_a_file_there_are_no_keys(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not KeyRing(tmp_path / "file" / "keys.json").is_needed


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeysDamaged, match="cannot be read"):
        KeyRing(tmp_path)


def test_two_writers_lose_nothing(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: KeyFile(path).create(f"key{number}", rights=_READ), range(40)))
    assert {key.name for key in KeyFile(path).read()} == {f"key{number}" for number in range(40)}


def test_a_change_that_fails_leaves_the_file(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.create("ci", rights=_READ)
    before = file.path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        file.create("other", rights=_READ)
    assert file.path.read_bytes() == before
    assert sorted(each.name for each in file.path.parent.iterdir()) == ["keys.json", "keys.json.lock"]


def test_the_access_of_a_key_is_cached_per_key() -> None:
    key = Key("01234567", "ci", _START, rights=_READ)
    assert key.access is key.access
    wider = msgspec.structs.replace(key, rights=RIGHTS)
    assert wider.access.rights == RIGHTS
