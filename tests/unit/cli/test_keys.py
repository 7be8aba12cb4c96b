"""`kb keys`: create, list, rotate, revoke, and refusals. The key file itself has its own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_cli.output import Exit
from kb_contracts.access.key_file import KeyFile
from kb_contracts.access.keys import TOKEN, KeyRing, Quotas
from tests.unit.cli.conftest import Kb


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KB_KEYS", raising=False)
    monkeypatch.setenv("KB_HOME", str(tmp_path / "kb"))
    return tmp_path / "kb" / "keys.json"


def test_a_token_is_shown_once_and_alone_on_stdout(kb: Kb, path: Path) -> None:
    status, out, err = kb("keys", "create", "ci")
    assert status == Exit.OK
    assert TOKEN.fullmatch(out.strip())
    assert "shown only now" in err
    assert "From now on all clients and the pages need a key" in err
    assert "From now on" not in kb("keys", "create", "second")[2]
    found = KeyRing(path).find(out.strip())
    assert found is not None
    assert (found.rights, found.collections, found.expires) == ({"read"}, None, None)
    listed = kb("keys", "list")
    assert out.strip() not in listed[1] + listed[2]


def test_options_set_rights_collections_and_quotas_of_a_key(kb: Kb, path: Path) -> None:
    made = kb.json(
        "keys", "create", "ci", "--rights", "read,write",
        "--collection", "memory,team-*", "--collection", "workspace",
        "--toolset", "kb", "--expires", "90d", "--calls-per-minute", "60", "--bytes-per-day", "1000",
        "--documents-per-day", "0", "--uploads-in-flight", "2",
    )  # fmt: skip
    [key] = KeyFile(path).read()
    assert key.rights == {"read", "write"}
    assert key.collections == ("memory", "team-*", "workspace")
    assert key.toolsets == ("kb",)
    assert key.quotas == Quotas(60, 1000, 0, 2)
    assert key.expires is not None
    assert (key.expires - key.created).days in (89, 90)
    assert made["token"].startswith(f"kb_{key.id}_")
    assert made["collections"] == ["memory", "team-*", "workspace"]


def test_a_collection_that_kb_makes_none_of_is_noted(kb: Kb, path: Path) -> None:
    """The engine accepts any tag, and a client may have sent such a tag to its API."""
    words = "not a name that kb creates"
    err = kb("keys", "create", "ci", "--collection", "Bad*,memory,team-*,*", "--collection", "x y")[2]
    assert [line.partition(":")[0] for line in err.splitlines() if words in line] == ["Bad*", "x y"]
    assert [len(key.collections or ()) for key in KeyFile(path).read()] == [5]


def test_keys_are_listed_with_their_state(kb: Kb) -> None:
    assert kb.json("keys", "list") == []
    for name in ("one", "two"):
        kb("keys", "create", name)
    kb("keys", "revoke", "two")
    listed = kb.json("keys", "list")
    assert [(key["name"], key["state"]) for key in listed] == [("one", "valid"), ("two", "revoked")]
    assert not [key for key in listed if "token" in key or "secrets" in key]
    assert "one" in kb("keys", "list")[1]
    assert "No key is valid now" in kb("keys", "revoke", "one")[2]


def test_a_key_is_rotated(kb: Kb, path: Path) -> None:
    old = kb.json("keys", "create", "ci")["token"]
    kept = kb.json("keys", "rotate", "ci", "--grace", "1h")["token"]
    ring = KeyRing(path)
    assert ring.find(old) is not None
    assert ring.find(kept) is not None
    new = kb.json("keys", "rotate", "ci")["token"]
    assert [ring.find(token) is not None for token in (old, kept, new)] == [False, False, True]


def test_the_variable_kb_keys_names_the_file_of_keys(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KB_KEYS", str(tmp_path / "elsewhere.json"))
    kb("keys", "create", "ci")
    assert [key.name for key in KeyFile(tmp_path / "elsewhere.json").read()] == ["ci"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("create",), Exit.USAGE, "needs the name"),
        (("list", "ci"), Exit.USAGE, "takes no name"),
        (("create", "CI"), Exit.FAILED, "lower-case"),
        (("create", "ci", "--rights", "fly"), Exit.FAILED, "'fly' is no right"),
        (("create", "ci", "--rights", ""), Exit.FAILED, "needs a right"),
        (("create", "ci", "--expires", "soon"), Exit.USAGE, "30m, 12h, 90d"),
        (("create", "ci", "--expires", "0d"), Exit.USAGE, "not a period"),
        (("revoke", "ci"), Exit.FAILED, "There is no key 'ci'"),
        (("rotate", "ci"), Exit.FAILED, "There is no key 'ci'"),
    ],
)
def test_invalid_arguments_of_keys_are_refused(
    kb: Kb, arguments: tuple[str, ...], status: Exit, words: str
) -> None:
    found, out, err = kb("keys", *arguments)
    assert (found, out) == (status, "")
    assert words in err


def test_a_damaged_file_is_left_alone(kb: Kb, path: Path) -> None:
    path.parent.mkdir()
    path.write_text("{")
    for arguments in (("list",), ("create", "ci")):
        status, _, err = kb("keys", *arguments)
        assert status == Exit.FAILED
        assert "is no file of keys" in err
    assert path.read_text() == "{"
