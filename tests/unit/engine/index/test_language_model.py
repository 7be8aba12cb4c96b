"""The language detector answers the same from its cache, and does without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from kb_engine.index import language_model
from kb_engine.index.language_model import detector
from tests.unit.engine.index.test_languages import TEXTS

LANGUAGES = ["de", "en"]
SAMPLES = ("aaab", "bbba", "", "12 34", "\ud800 b")


def answers(identifier: Any) -> list[tuple[str, float]]:
    return [identifier.classify(text) for text in SAMPLES]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept models."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kb" / "languages"


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were unpacked: a model of two letters, each typical of a language."""
    done: list[str] = []

    def fake(file: str, *, norm_probs: bool) -> Any:
        done.append(file)
        steps = np.zeros((1, 256), np.uint32)
        steps[0, [ord("a"), ord("b")]] = 1, 2
        weights = np.array([[4, 0, 1], [0, 4, 1]], np.float16)
        names, rows, output = ["de", "en", "fr"], [0, 0, 0], [-1, 0, 1]
        return LanguageIdentifier(
            weights, np.zeros(3, np.float32), names, steps.ravel(), output, norm_probs, tk_row=rows
        )

    monkeypatch.setattr(LanguageIdentifier, "from_model_file", fake)
    return done


def unpack(file: str, languages: list[str]) -> Any:
    """A detector that uses no cache."""
    made = LanguageIdentifier.from_model_file(file, norm_probs=True)
    made.set_languages(languages)
    return made


def test_a_kept_model_answers_like_the_unpacked_one(cache: Path, unpacked: list[str]) -> None:
    expected = answers(unpack("", LANGUAGES))
    (cache / "of an older model").mkdir(parents=True)
    assert answers(detector(LANGUAGES)) == answers(detector(LANGUAGES)) == expected
    assert len(unpacked) == 2
    assert {language for language, _ in expected} == set(LANGUAGES)
    (kept,) = cache.iterdir()
    assert kept.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"", b"no array", None])
def test_a_damaged_model_is_replaced(cache: Path, unpacked: list[str], content: bytes | None) -> None:
    at_first = answers(detector(LANGUAGES))
    (kept,) = cache.iterdir()
    file = kept / "tk_nextmove.npy"
    file.write_bytes(file.read_bytes()[:200] if content is None else content)
    assert answers(detector(LANGUAGES)) == answers(detector(LANGUAGES)) == at_first
    assert len(unpacked) == 2


@pytest.mark.parametrize("folder", ["/dev/null", "relative"])
def test_a_detector_needs_no_cache(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unpacked: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    assert answers(detector(LANGUAGES)) == answers(detector(LANGUAGES))
    assert len(unpacked) == 2
    assert not list(tmp_path.iterdir())


def test_a_nearly_full_disk_is_left_as_it_is(
    cache: Path, monkeypatch: pytest.MonkeyPatch, unpacked: list[str]
) -> None:
    monkeypatch.setattr(language_model, "_FREE_BYTES", 1 << 60)
    detector(LANGUAGES)
    assert unpacked
    assert list(cache.iterdir()) == []


@pytest.mark.process
def test_the_real_model_answers_the_same_when_it_is_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probabilities(made: Any) -> list[tuple[str, float]]:
        return [made.classify(text) for text in TEXTS.values()]

    expected = probabilities(unpack(MODEL_FILE, [*TEXTS]))
    assert [language for language, _ in expected] == [*TEXTS]
    assert probabilities(detector([*TEXTS])) == expected
    monkeypatch.delattr(LanguageIdentifier, "from_model_file")
    assert probabilities(detector([*TEXTS])) == expected
    assert len(list(cache.iterdir())) == 1
