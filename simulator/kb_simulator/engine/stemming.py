"""The Porter stemmer for English, as FTS5's tokenizer `porter` applies it.

M. F. Porter, An algorithm for suffix stripping, Program 14 (1980). A word's shape is its row of
consonants and vowels, `y` being a vowel after a consonant; the measure of a shape counts its runs
vowel-consonant, and most endings go only from a stem that measures enough.
"""

from __future__ import annotations

from functools import lru_cache

_SHORTEST = 3
_LONGEST = 64

Rules = tuple[tuple[str, str], ...]

# A rule that stands before another whose ending it contains is the one that counts.
_STEP_2: Rules = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"),
    ("logi", "log"), ("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"),
    ("ization", "ize"), ("ation", "ate"), ("ator", "ate"), ("alism", "al"), ("iveness", "ive"),
    ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive"), ("biliti", "ble"),
)  # fmt: skip
_STEP_3: Rules = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""),
    ("ness", ""),
)  # fmt: skip
_STEP_4: Rules = tuple((ending, "") for ending in (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent",
    "ou", "ism", "ate", "iti", "ous", "ive", "ize",
))  # fmt: skip


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """The stem of a lower-case word; words under 3 or over 64 bytes in UTF-8 stay as they are."""
    # FTS5 stems bytes: each byte of a letter beyond ASCII is a consonant of its own.
    raw = word if word.isascii() else word.encode().decode("latin-1")
    if not _SHORTEST <= len(raw) <= _LONGEST:
        return word
    stemmed = _stem(raw)
    return stemmed if stemmed.isascii() else stemmed.encode("latin-1").decode("utf-8", "replace")


def _stem(word: str) -> str:
    word = _past_and_gerund(_plural(word))
    if word[-1] == "y" and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(word, _STEP_2, more_than=0)
    word = _replace(word, _STEP_3, more_than=0)
    return _tidy(_derived(word))


def _shape(word: str) -> str:
    letters = []
    vowel = True
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and not vowel)
        letters.append("v" if vowel else "c")
    return "".join(letters)


def _measure(word: str) -> int:
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return any(letter in "aeiou" or (letter == "y" and place > 0) for place, letter in enumerate(word))


def _ends_short(word: str) -> bool:
    """Consonant, vowel, consonant at the end, the last not w, x or y: as in hop."""
    return word[-1:] not in {"w", "x", "y"} and _shape(word)[-3:] == "cvc"


def _plural(word: str) -> str:
    if any(word.endswith(ending) and len(word) > len(ending) for ending in ("sses", "ies")):
        return word[:-2]
    return word[:-1] if word[-1] == "s" and word[-2] != "s" else word


def _past_and_gerund(word: str) -> str:
    if len(word) > 3 and word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        rest = word.removesuffix(ending)
        if rest != word and _has_vowel(rest):
            return _restored(rest)
    return word


def _restored(word: str) -> str:
    """What stood before -ed or -ing, its last letter mended: conflat(e), hop(p), fil(e)."""
    if len(word) > 2 and word.endswith(("at", "bl", "iz")):
        return word + "e"
    if len(word) > 1 and word[-1] == word[-2] and word[-1] not in "aeioulsz":
        return word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_short(word) else word


def _replace(word: str, rules: Rules, more_than: int) -> str:
    for ending, instead in rules:
        if word.endswith(ending) and len(word) > len(ending):
            rest = word[: -len(ending)]
            return rest + instead if _measure(rest) > more_than else word
    return word


def _derived(word: str) -> str:
    # -ion goes only after s or t, which stay.
    if word.endswith("ion"):
        rest = word[:-3]
        return rest if rest.endswith(("s", "t")) and _measure(rest) > 1 else word
    return _replace(word, _STEP_4, more_than=1)


def _tidy(word: str) -> str:
    if word[-1] == "e":
        rest = word[:-1]
        measure = _measure(rest)
        if measure > 1 or (measure == 1 and not _ends_short(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
