"""The numbers of headings and list items, computed as Word does: a DOCX has only the counting rules."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from kb_readers.markdown import one_line
from kb_readers.xml_files import Attributes, Handler, value_of

_DEEPEST = 8  # the last of nine depths of a list, from 0
_LARGEST_START = 1_000_000
_LONGEST_TEXT = 100
_PLACEHOLDER = re.compile("%([1-9])")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MOST_LETTERS = 30  # maximum repetitions: aa follows z, and bb follows aa
_ROMAN = (
    (1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"),
    (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"),
)  # fmt: skip
_MOST_ROMAN = 3999


@dataclass
class _Level:
    """The numbering of items of one depth."""

    format: str = "decimal"
    start: int = 1
    text: str = ""  # with placeholders: `%1` is the number of the outermost depth
    is_legal: bool = False  # true if all numbers in it are decimal, regardless of the formats of their depths


class Numbering(Handler):
    """The lists of a document, by id."""

    def __init__(self) -> None:
        self._levels: defaultdict[tuple[str, str], dict[int, _Level]] = defaultdict(dict)
        self._definitions: dict[str, str] = {}
        self._starts: dict[tuple[str, int], int] = {}  # start overrides, by list and depth
        self._owner = ("", "")  # the open shared definition, or list with levels of its own
        self._depth = 0
        self._open = _Level()

    def definition(self, list_id: str) -> str:
        """Return the definition of a list, or "". Lists of the same definition are counted together."""
        return self._definitions.get(list_id, "")

    def level(self, list_id: str, depth: int) -> _Level | None:
        for owner in (("num", list_id), ("abstractNum", self.definition(list_id))):
            if (level := self._levels.get(owner, {}).get(depth)) is not None:
                return level
        return None

    def own_start(self, list_id: str, depth: int) -> int | None:
        """Return the start of a list that does not continue the count of its definition, or None."""
        return self._starts.get((list_id, depth))

    def start(self, name: str, attributes: Attributes) -> None:
        value = value_of(attributes)
        if name == "abstractNum":
            self._owner = name, value_of(attributes, "abstractNumId")
        elif name == "num":
            self._owner = name, value_of(attributes, "numId")
        elif name == "abstractNumId":
            self._definitions[self._owner[1]] = value
        elif name == "lvlOverride":
            self._depth = int(value_of(attributes, "ilvl"))
        elif name == "startOverride":
            self._starts[self._owner[1], self._depth] = _start(value)
        elif name == "lvl":
            depth = int(value_of(attributes, "ilvl"))
            self._open = self._levels[self._owner][depth] = _Level(text=f"%{depth + 1}.")
        elif name == "start":
            self._open.start = _start(value)
        elif name == "numFmt":
            self._open.format = value
        elif name == "lvlText":
            self._open.text = value[:_LONGEST_TEXT]
        elif name == "isLgl":
            self._open.is_legal = value not in ("0", "false")


class Counter:
    """Numbers the items of one part in order."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._counts: defaultdict[str, dict[int, int]] = defaultdict(dict)  # by definition and depth
        self._begun: set[tuple[str, int]] = set()

    def mark(self, list_id: str, depth: int) -> str:
        """Count an item; return its mark, such as "2.1" or "Step 3:", or "" for a bullet or no mark."""
        depth = max(0, min(depth, _DEEPEST))
        level = self._numbering.level(list_id, depth)
        if level is None:
            return ""
        counts = self._counts[self._numbering.definition(list_id)]
        start = None if (list_id, depth) in self._begun else self._numbering.own_start(list_id, depth)
        self._begun.add((list_id, depth))
        if start is None:
            start = counts[depth] + 1 if depth in counts else level.start
        counts[depth] = start
        for deeper in [other for other in counts if other > depth]:
            del counts[deeper]
        if level.format == "bullet":
            return ""

        def number(placeholder: re.Match[str]) -> str:
            at = int(placeholder[1]) - 1
            other = self._numbering.level(list_id, at) or _Level()
            return numeral(counts.get(at, other.start), "decimal" if level.is_legal else other.format)

        return one_line(_PLACEHOLDER.sub(number, level.text))


def _start(value: str) -> int:
    return max(0, min(int(value or 1), _LARGEST_START))


def numeral(count: int, fmt: str) -> str:
    """Format a number as Word does; decimal if the format is unknown or has no such number."""
    numeral = str(count)
    if fmt in ("none", "bullet"):
        return ""
    if fmt == "decimalZero":
        return numeral.zfill(2)
    if fmt in ("lowerLetter", "upperLetter") and 0 < count <= len(_LETTERS) * _MOST_LETTERS:
        rounds, letter = divmod(count - 1, len(_LETTERS))
        numeral = _LETTERS[letter] * (rounds + 1)
    elif fmt in ("lowerRoman", "upperRoman") and 0 < count <= _MOST_ROMAN:
        numeral = ""
        for value, sign in _ROMAN:
            times, count = divmod(count, value)
            numeral += sign * times
    return numeral.upper() if fmt.startswith("upper") else numeral
