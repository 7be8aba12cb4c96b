"""How many tokens a text has for a model whose tokenizer nobody told us: an estimate, rather too high.

    letters of a to z                       3 a token, each word by itself
    digits, signs, other letters of 2 bytes 1 token each (accents, Greek, Cyrillic, Hebrew, Arabic)
    what takes 3 bytes                      2 tokens each (Chinese, Japanese, Indic scripts)
    Korean syllables                        3 tokens each
    what takes 4 bytes                      4 tokens each (emoji, rare Chinese characters)

WordPiece takes Korean apart into two or three letters, and what works on bytes knows nothing longer than a
byte of what it has not been trained on. English prose has four to five letters a token, so it is counted
a third more than it has. Random letters, as in a key, and prose in a language that the model has not been
trained on can have a few more tokens than this.
"""

from __future__ import annotations

import re

_LETTERS_A_TOKEN = 3
_MARKS = 2
_WORD = re.compile(r"[A-Za-z]+")
_WEIGHTS = (
    (1, re.compile(r"[0-9!-/:-@\[-`{-~\x80-\u07ff]")),
    (2, re.compile(r"[\u0800-\uabff\ud7a4-\uffff]")),
    (3, re.compile(r"[\uac00-\ud7a3]")),
    (4, re.compile(r"[\U00010000-\U0010ffff]")),
)


def estimated_tokens(text: str) -> int:
    """The tokens of a text, with the two marks that most models put around it."""
    words = sum(-(-len(word) // _LETTERS_A_TOKEN) for word in _WORD.findall(text))
    return _MARKS + words + sum(weight * len(kind.findall(text)) for weight, kind in _WEIGHTS)


def cut(text: str, most: int) -> str:
    """The beginning of the text, as far as it is estimated at `most` tokens."""
    while (tokens := estimated_tokens(text)) > most and len(text) > 1:
        text = text[: max(1, min(len(text) - 1, len(text) * most // tokens))]
    return text
