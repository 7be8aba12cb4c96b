"""Highlighting of a query's words in a passage, which the engine may have found by meaning alone.

A word with the same beginning is highlighted, so that inflected forms are too. Short words are highlighted
only if the query has no longer ones: the short words of a question are rarely relevant.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from kb_contracts.semantics.query import words_of

_EXCLUDED = re.compile(r'(?<!\S)-(?:"[^"]*"|\S+)')
_LONG = 4
_ENDING = 3
_MOST_WORDS = 64


Mark: TypeAlias = tuple[str, bool]
"""A part of a text, with True if it is highlighted."""


def marked(text: str, query: str) -> list[Mark]:
    """Return the text in parts, in order."""
    return marker(query)(text)


def marker(query: str) -> Callable[[str], list[Mark]]:
    """Return a function that highlights the words of a query in texts."""
    words = list(dict.fromkeys(words_of(_EXCLUDED.sub(" ", query))))[:_MOST_WORDS]
    words = [word for word in words if len(word) >= _LONG or not word.isascii()] or words
    if not words:
        return lambda text: [(text, False)]
    pattern = re.compile("|".join(_pattern(word) for word in words), re.IGNORECASE)

    def mark(text: str) -> list[Mark]:
        parts, place = [], 0
        for found in pattern.finditer(text):
            parts += [(text[place : found.start()], False), (found[0], True)]
            place = found.end()
        return [part for part in [*parts, (text[place:], False)] if part[0]]

    return mark


def _pattern(word: str) -> str:
    if not word.isascii() and len(word) == 1:
        return re.escape(word)  # a script without spaces, in which a character is a word
    stem = word[: max(_LONG, len(word) - _ENDING)]
    return rf"\b{re.escape(stem)}\w{{0,{_ENDING + len(word) - len(stem)}}}\b"
