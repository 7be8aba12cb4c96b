"""Authorization at an engine, by its settings and its data folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_config.settings import SettingsError
from kb_contracts.access.key_file import KeyFile, rights_of
from kb_contracts.access.local import local_token
from kb_contracts.access.reach import EVERYTHING, RIGHTS
from kb_engine.keys import key_ring
from kb_engine.settings import EngineSettings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    return tmp_path


def test_without_keys_everybody_may_do_everything(home: Path) -> None:
    assert key_ring(EngineSettings(home=home)).access_of("") == EVERYTHING


def test_named_keys_the_settings_key_and_the_owner_of_the_folder_stand_beside_one_another(home: Path) -> None:
    key, token = KeyFile(home / "keys.json").create("ci", rights=rights_of(["read"]), collections=("a",))
    ring = key_ring(EngineSettings(home=home, api_key="secret"))
    assert ring.access_of(token) == key.access
    for every in ("secret", local_token(home / "engine")):
        found = ring.access_of(every)
        assert found is not None
        assert (found.rights, found.reach) == (RIGHTS, None)
    assert ring.access_of("") is None
    assert ring.access_of("guess") is None


def test_a_damaged_file_is_refused(home: Path) -> None:
    (home / "elsewhere.json").write_text("{")
    with pytest.raises(SettingsError, match="KB_KEYS"):
        key_ring(EngineSettings(home=home, keys=str(home / "elsewhere.json")))
