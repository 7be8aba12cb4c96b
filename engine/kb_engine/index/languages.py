"""Language detection for documents, and stemming.

A document has one language, detected when it is added and recorded in the store: it selects the analyser of
its words (`words.py`). None: the language is unknown, and the words are analysed as English.

The stems are Snowball's (PyStemmer). The detector is py3langid, restricted to languages that are stemmed here
or share a script with these: an unlikely language is more often wrong than right, and the only cost of a
wrong decision is that inflected forms are not found.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache

STEMMERS = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek",
    "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish", "fr": "french",
    "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian", "it": "italian",
    "lt": "lithuanian", "ne": "nepali", "nl": "dutch", "no": "norwegian", "pl": "polish", "pt": "portuguese",
    "ro": "romanian", "ru": "russian", "sr": "serbian", "sv": "swedish", "ta": "tamil", "tr": "turkish",
}  # fmt: skip
"""Stemmers by ISO 639-1 code. English is stemmed by FTS5's porter tokenizer, as all words were at first."""
UNSPACED = {"th": "\u0e00-\u0e7f", "lo": "\u0e80-\u0eff", "km": "\u1780-\u17ff"}
"""Languages without spaces between words, and their character ranges; Chinese and Japanese are in `words.py`.
"""
_OTHERS = ("en", "bg", "uk", "zh", "ja", "ko")
"""Further languages that the detector distinguishes, so that their texts are not taken for one of the above.
"""

SURE = 0.75
"""Minimum probability of a detected language: of fifty short texts in fifteen languages no detection above it
was wrong.
"""
PASSAGES, SAMPLE_CHARS = 8, 2_000
"""Number of passages at the beginning of a document, and of characters in total, used for the detection."""
_UNSPACED_SHARE = 0.3
"""Minimum ratio of characters in the script to letters, for a language without spaces; its vowel signs do not
count as letters.
"""
_LETTERS = re.compile(r"[^\W\d_]")
_MARKS = re.compile("[\u0300-\u036f\u0610-\u061a\u0640\u064b-\u065f\u0670]")
"""Accents, and the optional vowel signs of Arabic."""


def language_of(title: str, texts: Sequence[str]) -> str | None:
    """Return the main language of a document, if it is certain enough. CPU-bound."""
    sample = " ".join(" ".join([title, *texts[:PASSAGES]]).split())[:SAMPLE_CHARS]
    letters = len(_LETTERS.findall(sample))
    if not letters:
        return None
    for language, characters in UNSPACED.items():
        if len(re.findall(f"[{characters}]", sample)) > _UNSPACED_SHARE * letters:
            return language
    language, probability = _detector()(sample)
    return language if probability >= SURE else None


@cache
def stemmer(language: str) -> Callable[[list[str]], list[str]]:
    """Return a function from lower-case words to stems without accents, one per word. See `STEMMERS`."""
    import Stemmer  # not before the first document in a language other than English

    algorithm = STEMMERS[language]
    local = threading.local()  # a Stemmer must not be used by two threads at once

    def stems(words: list[str]) -> list[str]:
        if not hasattr(local, "stemmer"):
            local.stemmer = Stemmer.Stemmer(algorithm)
        found: list[str] = local.stemmer.stemWords(words)
        return [each if each.isascii() else plain(each) for each in found]

    return stems


def plain(text: str) -> str:
    """Convert to lower case without accents."""
    # NFC composes the rest again: a Korean syllable stays one character.
    return unicodedata.normalize("NFC", _MARKS.sub("", unicodedata.normalize("NFD", text))).lower()


@cache
def _detector() -> Callable[[str], tuple[str, float]]:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # loading its model takes half a second

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages([*STEMMERS, *UNSPACED, *_OTHERS])
    lock = threading.Lock()

    def detect(text: str) -> tuple[str, float]:
        with lock:
            language, probability = identifier.classify(text)
        return str(language), float(probability)

    return detect
