"""Logical order of a line with right-to-left script, from the places of its characters.

PDFium concludes this order from the order of drawing: it reverses the words of Chromium's files, which draw
such lines from left to right, and the words of other scripts in a right-to-left line. The places of the
characters do not depend on the producer. Between letters from right to left, words of other scripts are read
from left to right with the numbers beside them.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from unicodedata import bidirectional, combining, normalize

_SCRIPTS = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]")
_FORM = re.compile("[\ufb1d-\ufdff\ufe70-\ufefc]")  # presentation forms
# Letters for the bidirectional classes; "b" is a bracket, "o" another sign.
_KINDS = {"R": "R", "AL": "A", "L": "L", "EN": "N", "AN": "N", "CS": "c", "ES": "s", "ET": "t"}
_FROM_LEFT = re.compile("[LN](?:[^RA]*[LN])?")  # in a line from the right
_FROM_RIGHT = re.compile("[RA](?:[^L]*[RA])?")  # in a line from the left
_NUMBER = re.compile("t?N(?:[cs]?N)*t?")
_ARABIC_NUMBER = re.compile("N(?:c?N)*")  # a date with hyphens, or a sign of per cent, runs from the right
_BRACKETS = {sign: pair for pair in ("()", "[]", "{}", "«»") for sign in pair}
_LAM = "\u0644"  # first in its ligatures, so the right one
_NEAR = 3  # letters on each side that may carry a mark
_NO_GAP = 0.05  # maximum gap in a word, in sizes of the text
_WORD_GAP = 0.15  # minimum gap between words, in sizes of the text


class Place(NamedTuple):
    """The place of a character along its line, in points."""

    origin: float
    begin: float
    end: float

    @property
    def middle(self) -> float:
        return (self.begin + self.end) / 2


def has_right_to_left(text: str) -> bool:
    return not text.isascii() and _SCRIPTS.search(text) is not None


def is_from_right(text: str) -> bool | None:
    """True if most letters are of right-to-left script; None without letters."""
    kinds = _kinds(text)
    right, left = kinds.count("R") + kinds.count("A"), kinds.count("L")
    return right > left if right or left else None


def seen_order(text: str, places: Sequence[Place], size: float) -> list[int]:
    """Return the indices of characters from left to right, marks after the letters that carry them.

    A space added by PDFium has no width, and the origin of the character on its left. It is left out
    if there is no gap: PDFium adds one before some marks. The index of a space is repeated between words that
    PDFium has in other places. The letters of a ligature that have one place are in PDFium's order, which is
    not always that of alef and lam.
    """

    def key(index: int) -> tuple[float, bool, float, int]:
        sign, place = text[index], places[index]
        rank = 1 if sign == _LAM else 2 if bidirectional(sign) == "L" else 0
        return place.origin, _is_added(sign, place), place.middle, rank

    order = sorted((index for index, sign in enumerate(text) if not combining(sign)), key=key)
    letters = [index for index in order if text[index] != " "]
    space = text.find(" ")
    if not letters:
        return list(range(len(text)))
    middles = [places[index].middle for index in letters]
    clusters = {index: [index] for index in order}
    for index, sign in enumerate(text):
        if combining(sign):
            mark = places[index]
            at = bisect(middles, mark.middle)
            near = letters[max(0, at - _NEAR) : at + _NEAR]
            clusters[min(near, key=lambda each: _distance(places[each], mark))].append(index)
    for cluster in clusters.values():
        cluster[1:] = sorted(cluster[1:], key=lambda index: combining(text[index]))
    found: list[int] = []
    for before, index, after in zip([None, *order], order, [*order[1:], None], strict=False):
        if before is not None:
            if after is not None and _is_added(text[index], places[index]):
                left, right = clusters[before], clusters[after]
                if len(left) + len(right) > 2 and _gap(places, left, right) < _NO_GAP * size:
                    continue
            is_word_apart = abs(index - before) > 1 and (text[before] + text[index]).isalnum()
            is_bare = len(clusters[before]) + len(clusters[index]) == 2
            is_wide = _gap(places, [before], [index]) > _WORD_GAP * size
            if space >= 0 and is_word_apart and is_bare and is_wide:
                found.append(space)
        found += clusters[index]
    return found


def _is_added(sign: str, place: Place) -> bool:
    return sign == " " and place.begin == place.end


def _gap(places: Sequence[Place], left: Sequence[int], right: Sequence[int]) -> float:
    return min(places[index].begin for index in right) - max(places[index].end for index in left)


def logical(seen: str, *, from_right: bool) -> str:
    """Return a text that is given from left to right, without presentation forms."""
    text = _paired("".join(seen[index] for index in logical_order(seen, from_right=from_right)))
    return _FORM.sub(lambda form: normalize("NFKC", form[0]).strip(), text)


def logical_order(seen: str, *, from_right: bool) -> list[int]:
    """Return the indices of the characters in logical order."""
    starts = [index for index, sign in enumerate(seen) if not index or not combining(sign)]
    ends = [*starts[1:], len(seen)]
    kinds = _kinds([seen[start] for start in starts])
    runs = [(0, len(kinds))] if from_right else [run.span() for run in _FROM_RIGHT.finditer(kinds)]
    order: list[int] = []
    at = 0
    for start, end in runs:
        order += range(at, start)
        at = end
        for first, last in reversed(_from_left(kinds, start, end)):
            order += (*reversed(range(last, end)), *range(first, last))
            end = first
        order += reversed(range(start, end))
    order += range(at, len(kinds))
    return [index for each in order for index in range(starts[each], ends[each])]


def _from_left(kinds: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of a run from right to left that are read from left to right."""
    number = _ARABIC_NUMBER if "A" in kinds else _NUMBER
    found = []
    for run in _FROM_LEFT.finditer(kinds, start, end):
        first, last = run.span()
        if "L" in run[0]:
            if run[0].count("b") % 2:  # with the other bracket
                if kinds[last : min(end, last + 1)] == "b":
                    last += 1
                elif kinds[max(start, first - 1) : first] == "b":
                    first -= 1
            found.append((first, last))
        else:  # with the sign of per cent or of a currency on each side
            first -= kinds[max(start, first - 1) : first] == "t"
            last += kinds[last : min(end, last + 1)] == "t"
            found += [each.span() for each in number.finditer(kinds, first, last)]
    return found


def _paired(text: str) -> str:
    """Return the text with brackets that open and close by what they touch.

    Producers write a mirrored bracket as it is seen, or as it is meant, and PDFium mirrors some of them.
    """
    found = list(text)
    opened: Counter[str] = Counter()
    for at, sign in enumerate(text):
        if pair := _BRACKETS.get(sign):
            before, after = text[at - 1 : at] if at else "", text[at + 1 : at + 2]
            opens = not opened[pair]
            if before.isalnum() != after.isalnum():
                opens = after.isalnum()
            if before.isspace() + (not before) != after.isspace() + (not after):
                opens = not before.strip()
            opened[pair] += 1 if opens else -1
            found[at] = pair[0] if opens else pair[1]
    return "".join(found)


def _kinds(text: Sequence[str]) -> str:
    return "".join("b" if sign in _BRACKETS else _KINDS.get(bidirectional(sign), "o") for sign in text)


def _distance(letter: Place, mark: Place) -> tuple[bool, float, float]:
    apart = max(letter.begin - mark.middle, mark.middle - letter.end, 0.0)
    return letter.origin != mark.origin, apart, abs(letter.middle - mark.middle)
