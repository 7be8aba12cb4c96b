"""Settings of an embedding endpoint: what is refused at the start, in one line that says what to set."""

from __future__ import annotations

import pytest

from kb_config.settings import SettingsError
from kb_engine.embed.openai.settings import OpenAISettings
from kb_engine.embed.registry import embedder_from
from kb_engine.settings import EngineSettings

ENDPOINT = {
    "KB_EMBEDDER": "openai",
    "KB_EMBEDDING_URL": "http://127.0.0.1:11434/v1",
    "KB_EMBEDDING_MODEL": "nomic-embed-text",
}


def test_an_endpoint_is_a_url_and_a_model() -> None:
    """All else has a default; blanks at the end of a prefix stay, for they belong to it."""
    settings = EngineSettings.read({**ENDPOINT, "KB_EMBEDDING_QUERY_PREFIX": "search_query: "})
    assert settings.openai.embeddings_url == "http://127.0.0.1:11434/v1/embeddings"
    assert settings.openai.embedding_query_prefix == "search_query: "
    assert embedder_from(settings.embedder, settings).name == "openai:nomic-embed-text"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"KB_EMBEDDING_URL": ""}, "needs KB_EMBEDDING_URL, for example http://127.0.0.1:11434/v1"),
        ({"KB_EMBEDDING_MODEL": " "}, "needs KB_EMBEDDING_MODEL"),
        ({"KB_EMBEDDING_MODEL": "a\nb"}, "KB_EMBEDDING_MODEL"),
        ({"KB_EMBEDDING_URL": "127.0.0.1:11434"}, "KB_EMBEDDING_URL.*http"),
        ({"KB_EMBEDDING_URL": "file:///v1"}, "KB_EMBEDDING_URL.*http"),
        ({"KB_EMBEDDING_URL": "http://host:port/v1"}, "KB_EMBEDDING_URL"),
        ({"KB_EMBEDDING_URL": "http://[::1/v1"}, "KB_EMBEDDING_URL"),
        ({"KB_EMBEDDING_URL": "http://a host/v1"}, "KB_EMBEDDING_URL"),
        ({"KB_EMBEDDING_URL": "http://host/v1?x=1"}, "query"),
        ({"KB_EMBEDDING_URL": "http://host/v1#x"}, "fragment"),
        ({"KB_EMBEDDING_URL": "http://me:sk-secret@host/v1"}, "OPENAI_API_KEY"),
        ({"OPENAI_API_KEY": "sk-secret\nX-Other: 1"}, "OPENAI_API_KEY"),
        ({"OPENAI_API_KEY": "sk-secreté"}, "OPENAI_API_KEY"),
        ({"KB_EMBEDDING_DIMENSIONS": "-1"}, "KB_EMBEDDING_DIMENSIONS"),
        ({"KB_EMBEDDING_DIMENSIONS": "many"}, "KB_EMBEDDING_DIMENSIONS"),
        ({"KB_EMBEDDING_MAX_TOKENS": "10"}, "KB_EMBEDDING_MAX_TOKENS"),
        ({"KB_EMBEDDING_BATCH": "0"}, "KB_EMBEDDING_BATCH"),
        ({"KB_EMBEDDING_TIMEOUT": "0"}, "KB_EMBEDDING_TIMEOUT"),
        ({"KB_EMBEDDING_DOCUMENT_PREFIX": "x" * 201}, "KB_EMBEDDING_DOCUMENT_PREFIX"),
        ({"KB_EMBEDDING_SCORING": "0.7"}, "KB_EMBEDDING_SCORING.*cosine_floor"),
        ({"KB_EMBEDDING_SCORING": "w=two"}, "KB_EMBEDDING_SCORING.*number"),
        ({"KB_EMBEDDING_SCORING": "w=1.5"}, "KB_EMBEDDING_SCORING.*0 to 1"),
        ({"KB_EMBEDDING_SCORING": "w=nan"}, "KB_EMBEDDING_SCORING.*0 to 1"),
        ({"KB_EMBEDDING_SCORING": "k=0"}, "KB_EMBEDDING_SCORING.*above 0"),
        ({"KB_EMBEDDING_SCORING": "k=inf"}, "KB_EMBEDDING_SCORING.*above 0"),
    ],
)
def test_what_names_no_endpoint_is_refused_with_its_variable(changes: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        EngineSettings.read({**ENDPOINT, **changes})
    assert "\n" not in str(refused.value)
    assert "sk-secret" not in str(refused.value)


def test_without_its_name_an_endpoint_is_not_looked_at() -> None:
    """Half of its settings, and a key that the environment has for something else, do no harm."""
    settings = EngineSettings.read({"KB_EMBEDDING_URL": "half", "OPENAI_API_KEY": "sk-\n"})
    assert settings.embedder == "minilm"
    with pytest.raises(SettingsError, match="KB_EMBEDDING_URL"):
        embedder_from("openai")


@pytest.mark.parametrize(
    ("url", "key", "clear"),
    [
        ("http://vllm:8000/v1", "sk", True),
        ("http://vllm:8000/v1", "", False),
        ("https://vllm:8000/v1", "sk", False),
        ("http://127.0.0.1:8000/v1", "sk", False),
        ("http://[::1]:8000/v1", "sk", False),
        ("http://localhost/v1", "sk", False),
        ("http://127.example.org/v1", "sk", True),
    ],
)
def test_a_key_on_a_network_without_tls_is_noticed(url: str, key: str, clear: bool) -> None:
    """This machine is no network."""
    settings = OpenAISettings(embedding_url=url, embedding_model="m", embedding_key=key)
    assert any("encryption" in each for each in settings.warnings(chosen=True)) is clear
