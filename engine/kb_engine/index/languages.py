"""The language of a document, and how its words are stemmed.

A document has one language, found when it is taken in, which stands in the store: it says by which analyser
its words were made (`words.py`). None: it is not known, and the words are those of English.

The stems are Snowball's (PyStemmer). The language is found by py3langid, of whose languages those are asked
for that are stemmed here or that are written in the same letters: an unlikely language is a wrong one more
often than not, and a wrong one only costs that inflected forms are not found.
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
"""By ISO 639-1. English is stemmed by FTS5's porter, as all words were before there were others."""
UNSPACED = {"th": "\u0e00-\u0e7f", "lo": "\u0e80-\u0eff", "km": "\u1780-\u17ff"}
"""Languages without spaces between the words, by their letters; Chinese and Japanese are in `words.py`."""
_OTHERS = ("en", "bg", "uk", "zh", "ja", "ko")
"""Those besides that a text is held against, so that it is not taken for one of the above."""

SURE = 0.75
"""Of a language from here on: of fifty short texts in fifteen languages nothing was wrong above it."""
PASSAGES, SAMPLE_CHARS = 8, 2_000
"""So many passages at the beginning of a document, and of these so much, say which language it is in."""
_UNSPACED_SHARE = 0.3
"""Of the letters of a text in a language without spaces, whose vowel signs are not letters."""
_LETTERS = re.compile(r"[^\W\d_]")
_MARKS = re.compile("[\u0300-\u036f\u0610-\u061a\u0640\u064b-\u065f\u0670]")
"""Accents, and the vowel signs of Arabic, which are written or not."""


def language_of(title: str, texts: Sequence[str]) -> str | None:
    """The language that most of a document is in; None where that is not certain. CPU-bound."""
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
    """From words in lower case to stems without accents, one for each. Languages are those of `STEMMERS`."""
    import Stemmer  # not before the first document in another language

    algorithm = STEMMERS[language]
    local = threading.local()  # its stemmers are not to be used by two threads at once

    def stems(words: list[str]) -> list[str]:
        if not hasattr(local, "stemmer"):
            local.stemmer = Stemmer.Stemmer(algorithm)
        found: list[str] = local.stemmer.stemWords(words)
        return [each if each.isascii() else plain(each) for each in found]

    return stems


def plain(text: str) -> str:
    """In lower case and without accents."""
    # Of what has none nothing is taken apart: a Korean syllable stays one character.
    return unicodedata.normalize("NFC", _MARKS.sub("", unicodedata.normalize("NFD", text))).lower()


@cache
def _detector() -> Callable[[str], tuple[str, float]]:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # it reads its model: half a second

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages([*STEMMERS, *UNSPACED, *_OTHERS])
    lock = threading.Lock()

    def detect(text: str) -> tuple[str, float]:
        with lock:
            language, probability = identifier.classify(text)
        return str(language), float(probability)

    return detect
