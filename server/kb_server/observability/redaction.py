"""What of a search query may stand in a log: its words, without what tells of a person.

Whatever looks like an email or IP address, a phone number, a long number or a key is struck out, rather too
much than too little. A name is a word like others and cannot be told apart: where queries hold names, the
field is to be dropped where logs are collected.
"""

from __future__ import annotations

import re
import unicodedata

STRUCK = "***"
MAX_CHARS = 200
"""So much of a query is logged at the most; a longer one ends in an ellipsis."""

_MAX_READ = 1_000
"""Characters of a query that are looked at: a character may become eighteen by normalization."""
_MAX_WORD = 24
"""A longer word is a key, a hash or a path rather than a word."""
_MAX_MIXED = 15
"""A longer word of letters and digits is a key too."""
_DIGITS = re.compile(r"\+?\d(?:[\s().\-/+_]{0,3}\d){5,}|\d{1,3}(?:\.\d{1,3}){3}")
"""Six digits and more, however grouped: phones, cards, accounts, dates of birth; and IP addresses."""
_REVEALING = ("@", "://", "=")
"""In an address, a URL and an assignment; the whole word goes."""
_OF_NUMBERS = " ().-/+_"
"""Between the digits of a number."""


def sanitised(query: str) -> str:
    """`query` as it may be logged."""
    # Compatibility forms and invisible characters would hide an address from what looks for one.
    normalized = unicodedata.normalize("NFKC", query[:_MAX_READ])
    text = "".join(char for char in normalized if unicodedata.category(char) != "Cf")
    words = text.split()
    is_cut = len(query) > _MAX_READ
    if is_cut and words and not text[-1].isspace():
        words.pop()  # half of an address would pass for a word
    kept = _DIGITS.sub(STRUCK, " ".join(_struck(word) for word in words))
    if is_cut:
        kept = f"{_without_last_number(kept)} {STRUCK}…".lstrip()
    return kept if len(kept) <= MAX_CHARS else f"{kept[:MAX_CHARS]}…"


def _without_last_number(text: str) -> str:
    """`text` without the digits at its end, which may be the beginning of a longer number."""
    end = len(text)
    while end and (text[end - 1].isdecimal() or text[end - 1] in _OF_NUMBERS):
        end -= 1
    return text[:end]


def _struck(word: str) -> str:
    is_key = len(word) > _MAX_WORD or (len(word) > _MAX_MIXED and _is_mixed(word))
    return STRUCK if is_key or any(sign in word for sign in _REVEALING) else word


def _is_mixed(word: str) -> bool:
    return any(char.isdigit() for char in word) and any(char.isalpha() for char in word)
