"""Settings of the reranker: off without a URL, and refused by name if unusable."""

from __future__ import annotations

import pytest

from kb_config.settings import SettingsError
from kb_engine.composition import reranker_from
from kb_engine.rerank.rerank_settings import RerankSettings
from kb_engine.settings import EngineSettings

URL = "http://127.0.0.1:8080/rerank"
KEY = "a-key-that-nobody-may-see"


def test_without_a_url_there_is_none() -> None:
    assert reranker_from(EngineSettings()) is None
    assert reranker_from(EngineSettings(parts=(RerankSettings(key=KEY),))) is None
    assert reranker_from(EngineSettings(parts=(RerankSettings(url=URL),))) is not None


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"KB_RERANK_URL": "127.0.0.1:8080"}, "KB_RERANK_URL.*no http or https URL"),
        ({"KB_RERANK_URL": "ftp://host/rerank"}, "KB_RERANK_URL.*no http or https URL"),
        ({"KB_RERANK_URL": "http://user:secret@host/rerank"}, "put the key into KB_RERANK_KEY"),
        ({"KB_RERANK_URL": f"{URL}?key=1"}, "query or a fragment"),
        ({"KB_RERANK_URL": "http://host:port/"}, "KB_RERANK_URL"),
        ({"KB_RERANK_URL": URL, "KB_RERANK_API": "openai"}, "KB_RERANK_API.*tei, jina, cohere, local"),
        ({"KB_RERANK_API": "local"}, "KB_RERANK_API=local needs KB_RERANK_MODEL"),
        ({"KB_RERANK_URL": URL, "KB_RERANK_API": "jina"}, "needs KB_RERANK_MODEL"),
        ({"KB_RERANK_URL": URL, "KB_RERANK_API": "cohere", "KB_RERANK_MODEL": "a\x00"}, "KB_RERANK_MODEL"),
        ({"KB_RERANK_KEY": "a\nb"}, r"KB_RERANK_KEY=\(secret\)"),
        ({"KB_RERANK_TIMEOUT": "0"}, "KB_RERANK_TIMEOUT"),
        ({"KB_RERANK_TIMEOUT": "31"}, "KB_RERANK_TIMEOUT"),
        ({"KB_RERANK_TIMEOUT": "nan"}, "KB_RERANK_TIMEOUT"),
        ({"KB_RERANK_CANDIDATES": "301"}, "KB_RERANK_CANDIDATES"),
        ({"KB_RERANK_BATCH": "0"}, "KB_RERANK_BATCH"),
    ],
)
def test_an_invalid_reranker_setting_is_refused_with_its_variable(
    environ: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        EngineSettings.read(environ)
    assert "secret@" not in str(refused.value)


def test_the_key_is_a_secret() -> None:
    settings = EngineSettings.read({"KB_RERANK_URL": URL, "KB_RERANK_KEY": KEY})
    assert KEY in settings.secrets
    rows = EngineSettings.describe({"KB_RERANK_URL": URL, "KB_RERANK_KEY": KEY})
    assert KEY not in str(rows)


@pytest.mark.parametrize(
    ("url", "warned"), [("http://models.example/rerank", 1), ("https://models.example/rerank", 0), (URL, 0)]
)
def test_a_key_that_is_sent_in_the_open_is_warned_of(url: str, warned: int) -> None:
    assert len(list(RerankSettings(url=url, key=KEY).warnings())) == warned
