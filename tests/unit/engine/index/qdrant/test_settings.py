"""Errors of settings are reported at start, by name and without secrets."""

from __future__ import annotations

import pytest

from kb_config.settings import SettingsError
from kb_engine.index.qdrant.qdrant_settings import QdrantSettings
from kb_engine.settings import EngineSettings

CHOSEN = {"VECTOR_DB_TYPE": "qdrant"}


@pytest.mark.parametrize(
    "url",
    [
        "qdrant:6333",
        "ftp://qdrant",
        "http://",
        "http://qdrant:x",
        "http://a:secret@qdrant",
        "http://q?secret",
        "http://q:6333\n",
        "http://q/\r\nsecret: 1",
        "http://q r",
        "http://%00",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"QDRANT_URL: (is no|holds a|ends in)") as caught:
        EngineSettings.read({**CHOSEN, "QDRANT_URL": url})
    assert "secret" not in str(caught.value)


def test_the_address_has_to_be_named() -> None:
    with pytest.raises(SettingsError, match="QDRANT_URL is missing"):
        EngineSettings.read(CHOSEN)


@pytest.mark.parametrize("key", ["sésame", "sesame\r\nX: y"])
def test_a_key_that_no_header_takes_is_refused(key: str) -> None:
    with pytest.raises(SettingsError, match=r"QDRANT_API_KEY=\(secret\)") as caught:
        EngineSettings.read({**CHOSEN, "QDRANT_URL": "http://q", "QDRANT_API_KEY": key})
    assert "same" not in str(caught.value)


@pytest.mark.parametrize(("replicas", "written"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_a_majority_of_copies_confirms_a_write(replicas: int, written: int) -> None:
    assert (
        EngineSettings.read({"QDRANT_REPLICAS": str(replicas)}).of(QdrantSettings).written_copies == written
    )


@pytest.mark.parametrize("name", ["", "a/b", "ä", "x" * 256])
def test_a_collection_has_a_name_that_stands_in_an_address(name: str) -> None:
    environ = {"QDRANT_COLLECTION": name}
    if not name:  # an empty variable counts as unset
        assert EngineSettings.read(environ).of(QdrantSettings).collection == "kb"
        return
    with pytest.raises(SettingsError, match="QDRANT_COLLECTION"):
        EngineSettings.read(environ)


def test_without_the_choice_the_rest_does_not_count() -> None:
    """RAGler's own backend reads the same variable."""
    assert EngineSettings.read({"QDRANT_URL": "http://qdrant:6333"}).index == ""


def test_the_key_is_never_printed() -> None:
    rows = EngineSettings.describe({**CHOSEN, "QDRANT_URL": "http://q", "QDRANT_API_KEY": "secret"})
    assert {row.variable: row.value for row in rows}["QDRANT_API_KEY"] == "set"
