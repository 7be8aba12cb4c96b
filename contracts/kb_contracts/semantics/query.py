"""The syntax of a search's query: phrases in quotation marks, exclusions behind a minus, and words.

    "connection reset by peer"      only passages that hold it, if the query is short
    -docker  -"docker compose"      only passages that do not hold it
    all other text                  words for the ranking of passages, including the words of phrases

Pasted text has quotation marks too. So a phrase is a condition only if the query has at most six words
outside phrases and exclusions, or if the search is strict. In other queries a phrase raises the score of a
passage that holds it, and excludes none.

A passage holds a phrase if its words are in text, heading or title in this order, with only white space and
punctuation between them. They are compared without case, compatibility forms and diacritics, and are not
stemmed. In scripts without spaces between words each character counts as a word, so that a phrase is found
inside a sentence.

Pasted text must not exclude words by accident. A minus excludes a word only if it consists of at least three
letters and digits, begins with a letter, and has no other characters; a query with options such as `-v` or
`--all` is a command line, and excludes no word. A query of several lines, which may be a diff, excludes
nothing. A straight quotation mark behind a letter or digit begins no phrase: it is an inch mark.

All of this takes linear time.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from kb_contracts.api.errors import EngineError

_CLOSING = {'"': '"', "“": "”“", "”": "”", "„": "“”", "«": "»"}
"""The closing quotation marks by opening mark."""
_OPENING = re.compile(f"[{''.join(_CLOSING)}]")
SYNTAX = re.compile(f"[-{''.join(_CLOSING)}]")
"""Matches every query that has a phrase or an exclusion."""
_MINUS = re.compile(r"(?<!\S)-\S+")
FEW_WORDS = 6
"""Maximum number of words outside phrases and exclusions of a query whose phrases are conditions."""
_SHORTEST = 3
"""Minimum length of an excluded word, in letters and digits: shorter ones are options."""
_TRAILING_PUNCTUATION = ".,;:!?)"

_NOT_COMPARED = re.compile(
    "[\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f"
    "\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
    "\u00ad\u200c\u200d\u2060\ufeff]"
)
"""Ignored characters: accents, the points of Hebrew and Arabic, soft hyphens and invisible joiners."""
_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e50-\u0e59\u0e81-\u0edf\u1000-\u1049\u1050-\u109d\u1780-\u17d3\u17e0-\u17e9"
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3100-\u312f\u31a0-\u31bf"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Scripts compared by character: Thai, Lao, Burmese, Khmer, Han, kana, bopomofo, and Hangul, whose particles
are attached to words.
"""
_SIGNS = "".join(
    chr(code)
    for code in chain(range(0x0900, 0x1000), range(0x1700, 0x1CD0))
    if unicodedata.category(chr(code)) in {"Mn", "Mc"}
)
"""Vowel signs, mainly of Indic scripts, which `re` does not match as letters."""
_ASCII = bytes(ord(chr(code).lower()) if code < 128 and chr(code).isalnum() else 32 for code in range(256))
"""A translation of bytes: small letters, and a space for all but letters and digits."""
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_WORD = re.compile(rf"[\w{_SIGNS}]+")


def words_of(text: str) -> list[str]:
    """Return the words of a text in their order, normalised for comparison."""
    if text.isascii():
        return spelled(text).decode("ascii").split()
    spaced = _UNSPACED_RUN.sub(lambda run: f" {' '.join(run[0])} ", _folded(text))
    return _WORD.findall(spaced.replace("_", " "))


def spelled(text: str) -> bytes:
    """Return the words of a text in UTF-8, with spaces between them and around them."""
    if text.isascii():
        return text.encode("ascii").translate(_ASCII)
    return " ".join(words_of(text)).encode("utf-8", "surrogatepass")


def _folded(text: str) -> str:
    letters = _NOT_COMPARED.sub("", unicodedata.normalize("NFKD", text)).casefold()
    return unicodedata.normalize("NFKC", letters).replace("ı", "i")  # I is the capital of both


class Wording:
    """The phrases that a passage must hold, and the phrases and words that it must not hold, as written."""

    def __init__(self, phrases: Iterable[str] = (), excluded: Iterable[str] = ()) -> None:
        self.phrases, self.excluded = tuple(phrases), tuple(excluded)
        # A query may have hundreds of them: single words are looked up in a set, all at once.
        self._words, self._rows = _divided(self.phrases)
        self._no_words, self._no_rows = _divided(self.excluded)

    @property
    def held(self) -> list[list[str]]:
        """The words of each phrase."""
        return [[word] for word in self._words] + [row.split() for row in self._rows]

    @property
    def barred(self) -> list[list[str]]:
        """The words of each exclusion."""
        return [[word] for word in self._no_words] + [row.split() for row in self._no_rows]

    @property
    def scans(self) -> int:
        """Number of scans of a passage."""
        return 1 + len(self._rows) + len(self._no_rows)

    def passes(self, title: str, heading: str | None, text: str) -> bool:
        """True if a passage holds all phrases and no exclusion."""
        parts = _parts(title, heading, text)
        if self._rows or self._no_rows:
            whole = "\n".join(map(_in_a_row, parts))
            if not all(row in whole for row in self._rows) or any(row in whole for row in self._no_rows):
                return False
        words = set(chain.from_iterable(parts)) if self._words or self._no_words else set()
        return words >= self._words and words.isdisjoint(self._no_words)

    def share(self, title: str, heading: str | None, text: str) -> float:
        """Return the share of the phrases that a passage holds; 0 without phrases."""
        parts = _parts(title, heading, text)
        whole = "\n".join(map(_in_a_row, parts))
        held = len(self._words.intersection(chain.from_iterable(parts))) + sum(
            row in whole for row in self._rows
        )
        return held / max(1, len(self._words) + len(self._rows))

    def exclusions(self) -> Wording | None:
        """Return the exclusions without the phrases; None if there are no exclusions."""
        return Wording(excluded=self.excluded) if self.excluded else None


def _parts(title: str, heading: str | None, text: str) -> list[list[str]]:
    return [words_of(part) for part in (title, heading or "", text)]


def _divided(phrases: Iterable[str]) -> tuple[set[str], list[str]]:
    """Return the phrases of one word, and the phrases of several words."""
    found = [words_of(phrase) for phrase in phrases]
    rows = dict.fromkeys(_in_a_row(words) for words in found if len(words) > 1)
    return {words[0] for words in found if len(words) == 1}, list(rows)


def _in_a_row(words: Sequence[str]) -> str:
    return f" {' '.join(words)} "


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A parsed query. `text` ranks the passages; without phrases and exclusions it is the query itself.

    `wording` None: every passage passes. `preferred` has the phrases that are no conditions.
    """

    text: str
    wording: Wording | None = None
    preferred: Wording | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """A phrase or an excluded word, at `query[start:end]`."""

    start: int
    end: int
    text: str
    excluded: bool


def parse_query(query: str, most_words: float = FEW_WORDS) -> ParsedQuery:
    """Return the parsed query. With more than `most_words` outside of them, phrases are no conditions.
    Raises EngineError: `invalid_parameter` if it consists of exclusions only.
    """
    spans = list(_phrases(query))
    excludes = len(query.strip().splitlines()) == 1
    parts = [_phrase(query, start, end, excludes) for start, end in spans]
    if excludes:
        parts += _excluded_words(query, spans)
    if not parts:
        return ParsedQuery(query)
    pieces, outside, at = [], [], 0
    for part in sorted(parts, key=lambda part: part.start):
        outside.append(query[at : part.start])
        pieces += [outside[-1], "" if part.excluded else part.text]
        at = part.end
    outside.append(query[at:])
    text = " ".join(filter(None, map(str.strip, [*pieces, query[at:]])))
    if not any(map(str.isalnum, text)):
        raise EngineError(
            "invalid_parameter",
            "The query has exclusions only. Add words to search for; to search for a word that begins with a "
            "minus, put it into quotation marks.",
            parameter="query",
        )
    wording = Wording(
        (part.text for part in parts if not part.excluded), (part.text for part in parts if part.excluded)
    )
    if not wording.phrases or _count(" ".join(outside)) <= most_words:
        return ParsedQuery(text, wording)
    return ParsedQuery(text, wording.exclusions(), Wording(wording.phrases))


def _count(text: str) -> int:
    """Return the number of words; in scripts without spaces two characters count as a word."""
    runs = [len("".join(_UNSPACED_RUN.findall(word))) for word in text.split() if words_of(word)]
    return sum(max(1, (run + 1) // 2) for run in runs)


def _phrases(query: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each phrase, with its marks. A pair of marks without a word is ignored."""
    beyond = 0
    for mark in _OPENING.finditer(query):
        start = mark.start()
        if start < beyond or (mark[0] == '"' and query[max(0, start - 1) : start].isalnum()):
            continue
        ends = [end for closing in _CLOSING[mark[0]] if (end := query.find(closing, start + 1)) >= 0]
        if not ends:
            continue
        beyond = min(ends) + 1
        inside = query[start + 1 : beyond - 1]
        if any(map(str.isalnum, inside)) and words_of(inside):
            yield start, beyond


def _phrase(query: str, start: int, end: int, excludes: bool) -> _Part:
    before = query[max(0, start - 2) : start]
    excluded = excludes and before.endswith("-") and not before[:-1].strip()
    return _Part(start - excluded, end, query[start + 1 : end - 1], excluded)


def _excluded_words(query: str, phrases: Sequence[tuple[int, int]]) -> list[_Part]:
    """Return the excluded words outside of phrases; in a command line there are no exclusions."""
    starts, found = [start for start, _ in phrases], []
    for behind in _MINUS.finditer(query):
        start = behind.start()
        place = bisect(starts, start + 1) - 1
        if place >= 0 and start < phrases[place][1]:  # inside a phrase, or right before one
            continue
        word = behind[0][1:].rstrip(_TRAILING_PUNCTUATION)
        if len(word) >= _SHORTEST and word[0].isalpha() and "".join(words_of(word)) == _folded(word):
            found.append(_Part(start, start + 1 + len(word), word, excluded=True))
        elif word.lstrip("-")[:1].isalpha():
            return []
    return found
