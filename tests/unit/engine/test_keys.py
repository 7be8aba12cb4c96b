"""Authorization at an engine, by its settings and its data folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_contracts.access.key_file import KeyFile, rights_of
from kb_contracts.access.local import local_token
from kb_contracts.access.reach import EVERYTHING, RIGHTS
from kb_engine.composition import keys_of
from kb_engine.settings import EngineSettings
from kb_engine.start_errors import KeysUnusable


def test_without_keys_everybody_may_do_everything(tmp_path: Path) -> None:
    assert keys_of(EngineSettings(home=tmp_path)).access_of("") == EVERYTHING


def test_named_keys_the_settings_key_and_the_owner_of_the_folder_stand_beside_one_another(
    tmp_path: Path,
) -> None:
    key, token = KeyFile(tmp_path / "keys.json").create("ci", rights=rights_of(["read"]), collections=("a",))
    ring = keys_of(EngineSettings(home=tmp_path, api_key="secret"))
    assert ring.access_of(token) == key.access
    for every in ("secret", local_token(tmp_path / "engine")):
        found = ring.access_of(every)
        assert found is not None
        assert (found.rights, found.reach) == (RIGHTS, None)
    assert ring.access_of("") is None
    assert ring.access_of("guess") is None


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.json").write_text("{")
    with pytest.raises(KeysUnusable, match="KB_KEYS"):
        keys_of(EngineSettings(home=tmp_path, keys=str(tmp_path / "elsewhere.json")))
