"""The reason why a passage is among the results of a search, as a sentence."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.semantics.query import words_of
from kb_contracts.semantics.search import headings_of

_MOST_WORDS = 6
_SHORT = 3
"""Minimum length of a word that is listed, in characters, unless it has a digit."""


def reason(query: str, result: m.SearchResult) -> str:
    """Return a sentence from the passage and its explanation: words matched, title, cosine."""
    words = [word for word in dict.fromkeys(words_of(query)) if len(word) >= _SHORT or not word.isalpha()]
    above = f"{result.document.title} {headings_of(result.chunk) or ''}"
    in_text, in_title = (_listed(words, text) for text in (result.chunk.text, above))
    explain = result.explain
    reasons = []
    if in_text:
        reasons.append(f"the text has {in_text}")
    if in_title:
        reasons.append(f"title or headings have {in_title}")
    if explain is not None:
        if explain.bm25 is not None and not reasons:
            reasons.append("it has the words of the query in another form")
        if explain.cosine is not None:
            reasons.append(f"its meaning has the cosine {explain.cosine:.3f} to the query")
        if explain.relevance is not UNSET:
            reasons.append(f"the reranker gives it {explain.relevance:.3f}")
    *first, last = reasons or ["no passage is nearer"]
    return f"Found because {', '.join(first)}{' and ' if first else ''}{last}."


def _listed(words: Iterable[str], text: str) -> str:
    there = set(words_of(text))
    return ", ".join(f"“{word}”" for word in [word for word in words if word in there][:_MOST_WORDS])
