"""Marks the words of a query in a passage, for the eye: the engine has found it, by these or by its meaning.

A word is marked whose beginning it shares, so that other forms of it are marked too. Short words are marked
only where a query has no longer ones: those of a question say nothing.
"""

from __future__ import annotations

import re

from kb_contracts.semantics.query import words_of

_EXCLUDED = re.compile(r'(?<!\S)-(?:"[^"]*"|\S+)')
_LONG = 4
_ENDING = 3
_MOST_WORDS = 64


def marked(text: str, query: str) -> list[tuple[str, bool]]:
    """The text in parts, in order, each with whether it is marked."""
    words = list(dict.fromkeys(words_of(_EXCLUDED.sub(" ", query))))[:_MOST_WORDS]
    words = [word for word in words if len(word) >= _LONG or not word.isascii()] or words
    if not words:
        return [(text, False)]
    pattern = re.compile("|".join(_pattern(word) for word in words), re.IGNORECASE)
    parts, place = [], 0
    for found in pattern.finditer(text):
        parts += [(text[place : found.start()], False), (found[0], True)]
        place = found.end()
    return [part for part in [*parts, (text[place:], False)] if part[0]]


def _pattern(word: str) -> str:
    if not word.isascii() and len(word) == 1:
        return re.escape(word)  # of a script without spaces, where a character is a word
    stem = word[: max(_LONG, len(word) - _ENDING)]
    return rf"\b{re.escape(stem)}\w{{0,{_ENDING + len(word) - len(stem)}}}\b"
