"""XLSX into sheets: the name as heading, the rows as tables. Numbers and days stand as in the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain

from kb_simulator.engine.chunking import Page
from kb_simulator.extract.markdown import one_line, table
from kb_simulator.extract.model import MAX_TEXT_CHARS, Extracted, too_much_text
from kb_simulator.extract.package import Attributes, Package, reference

_PLACE = re.compile(r"([A-Z]{1,3})[0-9]+")
_WIDEST_GAP = 8


def read_xlsx(data: bytes) -> Extracted:
    """The sheets in the order of their tabs, as one page. Raises ExtractionFailed."""
    package = Package(data, "XLSX")
    main = package.main("xl")
    headings: dict[str, str] = {}

    def start(name: str, attributes: Attributes) -> None:
        if name == "sheet":
            hidden = "" if attributes.get("state", "visible") == "visible" else " (hidden sheet)"
            headings[reference(attributes)] = f"# {one_line(attributes.get('name', ''))}{hidden}"

    package.walk(main, start)
    targets = package.targets(main)
    strings = _Strings(package, next((t.part for t in targets.values() if t.kind == "sharedStrings"), ""))
    blocks: list[str] = []
    for id_, heading in headings.items():
        if id_ not in targets:
            package.refuse("a sheet is missing")
        found = list(_Sheet(package, targets[id_].part, strings.values).tables())
        blocks += [heading, *found] if found else []
    text = "\n\n".join(blocks)
    if len(text) > MAX_TEXT_CHARS:
        raise too_much_text()
    return Extracted([Page(None, text)])


class _Strings:
    """The texts that cells share."""

    def __init__(self, package: Package, part: str) -> None:
        self.values: list[str] = []
        self._pieces: list[str] = []
        self._open = False
        self._aside = False
        if part:
            package.walk(part, self._start, self._end, self._characters)

    def _start(self, name: str, _attributes: Attributes) -> None:
        self._aside = self._aside or name == "rPh"
        self._open = name == "t" and not self._aside

    def _end(self, name: str) -> None:
        self._open = False
        self._aside = self._aside and name != "rPh"
        if name == "si":
            self.values.append(one_line("".join(self._pieces)))
            self._pieces = []

    def _characters(self, text: str) -> None:
        if self._open:
            self._pieces.append(text)


class _Sheet:
    """The values of a sheet, by row and column from 1."""

    def __init__(self, package: Package, part: str, strings: list[str]) -> None:
        self._strings = strings
        self._rows: dict[int, dict[int, str]] = {}
        self._size = 0
        self._row = 0
        self._column = 0
        self._kind = ""
        self._pieces: dict[str, str] = {}
        self._open = ""
        package.walk(part, self._start, self._end, self._characters)

    def tables(self) -> Iterator[str]:
        """Rows that follow one another are one table."""
        rows: list[list[str]] = []
        last = 0
        for number in sorted(self._rows):
            if rows and number != last + 1:
                yield "\n".join(table(rows))
                rows = []
            rows.append(list(chain.from_iterable(_with_gaps(self._rows[number]))))
            last = number
        if rows:
            yield "\n".join(table(rows))

    def _start(self, name: str, attributes: Attributes) -> None:
        match name:
            case "row":
                self._row = int(attributes.get("r", self._row + 1))
                self._column = 0
            case "c":
                place = _PLACE.fullmatch(attributes.get("r", ""))
                self._column = _column(place[1]) if place else self._column + 1
                self._kind = attributes.get("t", "n")
                self._pieces = {"v": "", "t": "", "f": ""}
            case "v" | "t" | "f":
                self._open = name
            case _:
                pass

    def _end(self, name: str) -> None:
        self._open = ""
        if name == "c" and (shown := self._shown()):
            self._size += len(shown)
            if self._size > MAX_TEXT_CHARS:
                raise too_much_text()
            self._rows.setdefault(self._row, {})[self._column] = shown

    def _characters(self, text: str) -> None:
        if self._open:
            self._pieces[self._open] += text

    def _shown(self) -> str:
        value, text, formula = self._pieces["v"], self._pieces["t"], self._pieces["f"]
        if text or not value:
            return one_line(text or (f"={formula}" if formula else ""))
        if self._kind == "s":
            return self._strings[int(value)]
        if self._kind == "b":
            return "TRUE" if value == "1" else "FALSE"
        return one_line(value)


def _column(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def _with_gaps(values: Mapping[int, str]) -> Iterator[list[str]]:
    last = 0
    for column in sorted(values):
        gap = column - last - 1
        yield ["…"] if gap > _WIDEST_GAP else [""] * gap
        yield [values[column]]
        last = column
