"""Queries: phrases in quotation marks, words after a minus, and passages that match them."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field

from .promise import Refused

_ENDS = {'"': '"', "“": "“”", "”": "”", "„": "“”", "«": "»"}
_LONE = re.compile(r"([\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3])")


@dataclass
class Asked:
    """A parsed query."""

    plain: str = ""
    wanted: list[list[str]] = field(default_factory=list)
    unwanted: list[list[str]] = field(default_factory=list)
    beside: int = 0
    """Number of words outside phrases and unwanted words."""

    def fits(self, *texts: str) -> bool:
        """True if each wanted phrase is in one of the texts, and no unwanted phrase is in any."""
        split = [spelled(text) for text in texts]
        return self.held(*texts) == 1 and not any(
            _within(phrase, text) for phrase in self.unwanted for text in split
        )

    def held(self, *texts: str) -> float:
        """Return the share of the wanted phrases that are in one of the texts."""
        split = [spelled(text) for text in texts]
        held = [any(_within(phrase, text) for text in split) for phrase in self.wanted]
        return sum(held) / len(held) if held else 1


def spelled(text: str) -> list[str]:
    """The words of a text in a normal form that is equal for different spellings."""
    letters = unicodedata.normalize("NFKD", text).casefold()
    bare = "".join(letter for letter in letters if not "\u0300" <= letter <= "\u036f")
    return re.findall(r"[^\W_]+", _LONE.sub(r" \1 ", unicodedata.normalize("NFKC", bare)))


def _within(phrase: list[str], text: list[str]) -> bool:
    return _run(phrase) in _run(text)


def _run(words: list[str]) -> str:
    return "\0" + "\0".join(words) + "\0"


def taken_apart(query: str) -> Asked:
    """Parse a query.

    Raises:
        Refused: it has only unwanted words.
    """
    asked, minuses = Asked(), "\n" not in query.strip()
    rest = [""]  # plain text and phrases by turns
    at = 0
    while at < len(query):
        end = _end_of_phrase(query, at)
        if end is None:
            rest[-1] += query[at]
            at += 1
            continue
        words = spelled(query[at + 1 : end])
        if not words:
            rest[-1] += query[at : end + 1]
        elif minuses and re.search(r"(^|\s)-$", query[max(0, at - 2) : at]):
            rest[-1] = rest[-1][:-1]
            rest += ["", ""]
            asked.unwanted.append(words)
        else:
            rest += [query[at + 1 : end], ""]
            asked.wanted.append(words)
        at = end + 1
    if minuses:
        _take_words_out(rest, asked)
    asked.beside = len(spelled(" ".join(rest[::2])))
    asked.plain = " ".join(rest) if asked.wanted or asked.unwanted else query
    if asked.unwanted and not spelled(asked.plain):
        raise Refused("invalid_parameter", "Say what you look for, too.", parameter="query")
    return asked


def _end_of_phrase(query: str, at: int) -> int | None:
    ends = _ENDS.get(query[at])
    if ends is None or (query[at] == '"' and at and query[at - 1].isalnum()):
        return None
    return min((found for end in ends if (found := query.find(end, at + 1)) > 0), default=None)


def _take_words_out(rest: list[str], asked: Asked) -> None:
    """Move the words after a minus to `unwanted`; in a command line there are none."""
    parts = [part.split() for part in rest[::2]]
    dashed = [word for part in parts for word in part if re.match(r"-+[^\W\d_]", word)]
    out = {word for word in dashed if re.fullmatch(r"-[^\W\d_][^\W_]{2,}[.,;:!?)]*", word)}
    if set(dashed) - out:
        return
    asked.unwanted += [spelled(word) for word in out]
    rest[::2] = [" ".join(word for word in part if word not in out) for part in parts]
