"""Redaction of search queries for the log: words are kept, personal data is removed.

Text that looks like an email or IP address, a phone number, a long number or a key is removed; in doubt too
much rather than too little. A name is a word like any other and cannot be recognized: if queries hold names,
drop the field in the log collector.
"""

from __future__ import annotations

import re
import unicodedata

STRUCK = "***"
MAX_CHARS = 200
"""Maximum number of characters of a query in the log; a longer one ends in an ellipsis."""

_MAX_READ = 1_000
"""Number of characters of a query that are examined: normalization may turn a character into eighteen."""
_MAX_WORD = 24
"""A longer word is a key, a hash or a path rather than a word."""
_MAX_MIXED = 15
"""A longer word of letters and digits is a key too."""
_DIGITS = re.compile(r"\+?\d(?:[\s().\-/+_]{0,3}\d){5,}|\d{1,3}(?:\.\d{1,3}){3}")
"""Six digits and more, in any grouping: phones, cards, accounts, dates of birth; and IP addresses."""
_REVEALING = ("@", "://", "=")
"""Signs of an address, a URL and an assignment; the whole word is removed."""
_OF_NUMBERS = " ().-/+_"
"""Separators between the digits of a number."""


def sanitised(query: str) -> str:
    """Return `query` in a form for the log."""
    # Compatibility forms and invisible characters would hide an address from the patterns.
    normalized = unicodedata.normalize("NFKC", query[:_MAX_READ])
    text = "".join(char for char in normalized if unicodedata.category(char) != "Cf")
    words = text.split()
    is_cut = len(query) > _MAX_READ
    if is_cut and words and not text[-1].isspace():
        words.pop()  # half of an address could pass for a word
    kept = _DIGITS.sub(STRUCK, " ".join(_struck(word) for word in words))
    if is_cut:
        kept = f"{_without_last_number(kept)} {STRUCK}…".lstrip()
    return kept if len(kept) <= MAX_CHARS else f"{kept[:MAX_CHARS]}…"


def _without_last_number(text: str) -> str:
    """Return `text` without the digits at its end, which may be the beginning of a longer number."""
    end = len(text)
    while end and (text[end - 1].isdecimal() or text[end - 1] in _OF_NUMBERS):
        end -= 1
    return text[:end]


def _struck(word: str) -> str:
    is_key = len(word) > _MAX_WORD or (len(word) > _MAX_MIXED and _is_mixed(word))
    return STRUCK if is_key or any(sign in word for sign in _REVEALING) else word


def _is_mixed(word: str) -> bool:
    return any(char.isdigit() for char in word) and any(char.isalpha() for char in word)
