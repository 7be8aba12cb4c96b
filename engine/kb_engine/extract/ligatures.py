"""Undoes what xberg does to the words of a sound PDF while it looks for lost ligatures.

Some PDFs lose the ligatures fi, fl and ff: their text reads "f irst", "eff icient" or "e!cient". xberg mends
that when it writes Markdown, in every PDF, so "half life" becomes "halflife" and "a*b" becomes "attb". Its
plain text is not mended, but has the lines of tables and definitions out of order. So the order is taken
from the one and, where the font is sound, the words are taken from the other.
"""

from __future__ import annotations

import re
from itertools import product

# What only a font that lost its ligatures shows: a word begun by a lone f, or a mark of writing inside one.
_LOST = re.compile(r"\bf [il]\w|[a-z][!\"][a-z]")

# Words that end with f, each before one that xberg would join to it.
_JOINED = re.compile(r"\b(?:\w*[A-Za-z]f\s+(?=[ilf]))+\w+")
_MOST_JOINED = 6

# Letters that xberg reads out of a mark between letters.
_MARKED = re.compile(r"\w+(?:[#*]\w+)+")
_MARK = re.compile(r"([#*])")
_READ_AS = ("fi", "fl", "ff", "ffi", "ffl", "tt", "ti", "tti")
_MOST_MARKS = 2

_WORD = re.compile(r"\w+")


def with_words_of(plain: list[str], markdown: list[str]) -> list[str]:
    """The Markdown of each page with the words of its plain text, page for page."""
    if len(plain) != len(markdown) or any(_LOST.search(page) for page in plain):
        return markdown
    return [_restored(page, words) for page, words in zip(markdown, plain, strict=True)]


def _restored(markdown: str, plain: str) -> str:
    meant = _mistaken(plain)
    if not meant:
        return markdown
    for word in _WORD.findall(plain):
        meant.pop(word, None)  # it stands there as it is
    return _WORD.sub(lambda found: meant.get(found[0], found[0]), markdown)


def _mistaken(plain: str) -> dict[str, str]:
    """What xberg makes of the page's words, with the words themselves."""
    meant: dict[str, str] = {}
    for chain in set(_JOINED.findall(plain)):
        words = chain.split()[:_MOST_JOINED]
        for first in range(len(words)):
            for end in range(first + 2, len(words) + 1):
                meant["".join(words[first:end])] = " ".join(words[first:end])
    for marked in set(_MARKED.findall(plain)):
        parts = _MARK.split(marked)
        marks = parts[1::2]
        if len(marks) <= _MOST_MARKS:
            for letters in product(_READ_AS, repeat=len(marks)):
                parts[1::2] = letters
                meant["".join(parts)] = marked
    return meant
