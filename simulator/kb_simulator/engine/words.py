"""Text into the words that the index counts: as FTS5's `porter unicode61 remove_diacritics 2` does.

Where words are not parted by spaces (Chinese, Japanese, Korean) each character is a word, and each pair of
neighbours is one more, so that a word is found inside a sentence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise

from kb_simulator.engine.stemming import stem

_CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_CJK_RUN = re.compile(rf"[{_CJK}]+")
_MARKED = re.compile("([a-z])[\u0300-\u036f]+")

# Words that say nothing of what a text is about. They count for keywords, where their frequency weighs
# them, and not for meaning, where nothing else would.
_UNTELLING = frozenset(
    stem(word)
    for word in (
        "a", "an", "and", "are", "as", "at", "be", "but", "by", "can", "do", "does", "for", "from", "had",
        "has", "have", "how", "i", "if", "in", "into", "is", "it", "its", "no", "not", "of", "on", "or",
        "our", "so", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was",
        "we", "were", "what", "when", "where", "which", "who", "why", "will", "with", "you", "your",
    )
)  # fmt: skip


def words_of_text(text: str) -> list[str]:
    """The stems of a text's words in order, repeated where they are repeated."""
    found = []
    for run in _runs(text):
        found += [*run, *_pairs(run)] if _CJK_RUN.match(run) else [stem(run)]
    return found


def words_of_query(query: str) -> list[str]:
    """The stems to look for, each once; of a run of characters without spaces, its pairs."""
    found: dict[str, None] = {}
    for run in _runs(query):
        found.update(dict.fromkeys((_pairs(run) or [run]) if _CJK_RUN.match(run) else [stem(run)]))
    return list(found)


def telling(stems: list[str]) -> list[str]:
    """Those that say what a text is about; all of them where none does."""
    return [word for word in stems if word not in _UNTELLING] or stems


def _runs(text: str) -> Iterator[str]:
    return (found[0] for found in _WORD.finditer(_folded(text)))


def _pairs(run: str) -> list[str]:
    return ["".join(pair) for pair in pairwise(run)]


def _folded(text: str) -> str:
    """Lower case, Latin letters without diacritics; the marks of other scripts belong to their words."""
    lowered = text.lower()
    if lowered.isascii():
        return lowered
    return unicodedata.normalize("NFC", _MARKED.sub(r"\1", unicodedata.normalize("NFD", lowered)))
