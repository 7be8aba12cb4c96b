"""Secret settings whose values are in files, as orchestrators mount them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_config.settings import Settings, SettingsError
from kb_engine.settings import EngineSettings
from kb_server.settings import ServerSettings


def test_a_secret_is_read_from_the_file_that_the_variable_names(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xef\xbb\xbfs3cret-key\n")
    (tmp_path / "store").write_text("sqlite:/srv/kb.sqlite")
    environment = {"KB_API_KEY_FILE": str(tmp_path / "key"), "KB_STORE_FILE": str(tmp_path / "store")}
    settings = EngineSettings.read(environment)
    assert (settings.api_key, settings.store) == ("s3cret-key", "sqlite:/srv/kb.sqlite")
    assert "s3cret-key" in settings.secrets
    shown = {each.variable: (each.value, each.source) for each in EngineSettings.describe(environment)}
    assert shown["KB_API_KEY"] == ("set", "environment")
    assert shown["KB_STORE"] == ("sqlite:/srv/kb.sqlite", "environment")


def test_a_variable_may_repeat_its_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret-key")
    both = {"KB_MCP_API_KEY": "s3cret-key", "KB_MCP_API_KEY_FILE": str(tmp_path / "key")}
    assert ServerSettings.read(both).api_key == "s3cret-key"


@pytest.mark.parametrize(
    ("content", "variable", "reason"),
    [
        (None, "", "No such file"),
        (b" \n", "", "empty"),
        (b"\xff", "", "decode"),
        (b"one", "two", "another value"),
    ],
)
def test_a_file_that_gives_no_secret_is_refused(
    tmp_path: Path, content: bytes | None, variable: str, reason: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    environment = {"KB_API_KEY": variable, "KB_API_KEY_FILE": str(tmp_path / "key")}
    with pytest.raises(SettingsError, match=reason) as refused:
        ServerSettings.read(environment)
    assert "KB_API_KEY_FILE" in str(refused.value)
    assert "two" not in str(refused.value)


def test_a_path_of_an_unknown_user_is_refused_with_the_variable() -> None:
    with pytest.raises(SettingsError, match="KB_API_KEY_FILE"):
        ServerSettings.read({"KB_API_KEY_FILE": "~no-such-user/key"})


@pytest.mark.parametrize("kind", [ServerSettings, EngineSettings])
def test_only_secret_settings_are_read_from_files(kind: type[Settings], tmp_path: Path) -> None:
    before = kind.describe({})
    files = {
        f"{each.variable}_FILE": str(tmp_path / "absent") for each in before if "KEY" not in each.variable
    }
    for address in ("KB_STORE_FILE", "KB_POSTGRES_POOLER_FILE"):  # these may have a password
        files.pop(address, None)
    assert kind.describe(files) == before
