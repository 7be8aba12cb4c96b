"""XLSX sheet by sheet: a heading with its name, and each non-empty row as a line of a table.

Values appear as displayed: dates as dates, results of formulas, numbers with their unit, and codes with
leading zeros; but numbers are not rounded. Hidden content is included; the heading of a hidden sheet says so.
Empty rows and columns cost nothing, regardless of the declared size of a sheet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from typing import NamedTuple, TypeAlias

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import damaged, unsafe
from kb_readers.markdown import one_line, table_row, table_rule
from kb_readers.model import Extraction, TextBudget
from kb_readers.xml_files import Attributes, Handler, Package, reference

Formatter: TypeAlias = Callable[[str], str]
"""Formats a number from the file for display; raises ValueError for invalid numbers."""

MOST_CELLS = 1_000_000  # maximum number of non-empty cells of a workbook

_FORMAT = FORMATS["xlsx"]
_MOST_COLUMNS = 16_384
_WIDEST_GAP = 8  # maximum number of consecutive empty cells that are written out
_LONGEST_NAME = 40  # of a column, when it prefixes a value
_PLACE = re.compile(r"([A-Z]{1,3})([1-9][0-9]{0,6})")
_CONTROL = re.compile(r"_x00[01][0-9A-Fa-f]_")  # Office's escape of a control character in XML

_DAY_SECONDS = 86_400
_DAYS = 2_958_465  # up to the end of the year 9999
_MOST_HOURS = 1_000_000

# Literals of a format code, colours and languages, and the word for no format.
_LITERAL = re.compile(r'"[^"]*"|\\.|[_*].|\[(?!(?:h+|m+|s+)\])[^\]]*\]|general|standard', re.IGNORECASE)
_ELAPSED = re.compile(r"\[(?:h+|m+|s+)\]", re.IGNORECASE)
_TIME = re.compile(r"[dmyhs]", re.IGNORECASE)
_WHOLE = re.compile(r"-?[0-9]{1,15}")

# The parts of a format code. Any other character counts as digits that make no number.
_PART = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|[_*].|\[\$(?P<currency>[^\]-]*)[^\]]*\]|\[[^\]<=>]*\]'
    r"|(?P<shown>[-() $€£¥₩₹₽])|(?P<end>;)|(?P<digits>[0#?.,]+|general|standard|.)",
    re.IGNORECASE | re.DOTALL,
)
# A comma after the last digit divides by a thousand.
_DIGITS = re.compile(r"[0#?](?:[0#?,]*[0#?])?(?:\.[0#?]*)?|general|standard", re.IGNORECASE)
_NO_SIGNS = dict.fromkeys(map(ord, "-() "))
_LONGEST_CODE = 255  # Excel's maximum

# The built-in formats, which have a number and no code.
_PERCENTAGES = frozenset([9, 10])
_TIMES = frozenset([*range(14, 23), *range(27, 37), 45, 47, *range(50, 59)])
_DURATIONS = frozenset([46])


def read_xlsx(data: bytes) -> Extraction:
    """Return the whole workbook as one page without a number. Raises ExtractionFailed."""
    package = Package(data, _FORMAT, ("spreadsheetml", "vnd.ms-excel."))
    book = _Book()
    package.feed(package.main, book)
    outgoing = package.relationships(package.main)
    parts = {each.kind: each.part for each in outgoing.values()}
    strings, styles = _Strings(), _Styles()
    if "sharedStrings" in parts:
        package.feed(parts["sharedStrings"], strings)
    if "styles" in parts:
        package.feed(parts["styles"], styles)
    formatters = styles.of_cells(from_1904=book.from_1904)
    text = SheetText(_FORMAT.label)
    for sheet in book.sheets:
        where = outgoing.get(sheet.relationship)
        if where is None:
            raise damaged(_FORMAT.label, "a sheet is missing")
        if where.kind == "worksheet":  # a chart sheet has no cells
            text.begin(sheet.name, is_hidden=sheet.is_hidden)
            package.feed(where.part, _Cells(text, strings.values, formatters))
    return Extraction.of_text(_FORMAT, "\n".join(text.lines), package.title)


class _Sheet(NamedTuple):
    name: str
    is_hidden: bool
    relationship: str


class _Book(Handler):
    """The sheets in tab order, and the epoch of dates."""

    def __init__(self) -> None:
        self.sheets: list[_Sheet] = []
        self.from_1904 = False

    def start(self, name: str, attributes: Attributes) -> None:
        if name == "sheet":
            is_hidden = attributes.get("state", "visible") != "visible"
            self.sheets.append(_Sheet(one_line(attributes.get("name", "")), is_hidden, reference(attributes)))
        elif name == "workbookPr":
            self.from_1904 = attributes.get("date1904") in ("1", "true")


class _Strings(Handler):
    """The shared strings, which cells reference by index."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self._parts: list[str] = []
        self._in_text = False
        self._in_reading_aid = False

    def start(self, name: str, _attributes: Attributes) -> None:
        if name == "t":
            self._in_text = not self._in_reading_aid
        elif name == "rPh":  # phonetic guide to the characters beside it
            self._in_reading_aid = True

    def end(self, name: str) -> None:
        if name == "t":
            self._in_text = False
        elif name == "rPh":
            self._in_reading_aid = False
        elif name == "si":
            self.values.append(_words("".join(self._parts)))
            self._parts = []

    def characters(self, text: str) -> None:
        if self._in_text:
            self._parts.append(text)


class _Styles(Handler):
    """The number formats of cells, which cells reference by index."""

    def __init__(self) -> None:
        self._codes: dict[int, str] = {}
        self._of_cells: list[int] = []
        self._in_cells = False

    def of_cells(self, *, from_1904: bool) -> list[Formatter]:
        formatters = {
            number: formatter(number, self._codes.get(number, ""), from_1904=from_1904)
            for number in set(self._of_cells)
        }
        return [formatters[number] for number in self._of_cells]

    def start(self, name: str, attributes: Attributes) -> None:
        if name == "numFmt":
            self._codes[int(attributes.get("numFmtId", 0))] = attributes.get("formatCode", "")
        elif name == "cellXfs":
            self._in_cells = True
        elif name == "xf" and self._in_cells:
            self._of_cells.append(int(attributes.get("numFmtId", 0)))

    def end(self, name: str) -> None:
        if name == "cellXfs":
            self._in_cells = False


class SheetText:
    """The lines of the whole workbook, within limits."""

    def __init__(self, label: str) -> None:
        """`label`: the format in the messages of failures."""
        self._label = label
        self.lines: list[str] = []
        self._heading = ""
        self._last_row = 0
        self._header: dict[int, tuple[int, str]] = {}  # position and name by column of the open table
        self._cells = 0
        self._budget = TextBudget()

    def begin(self, name: str, *, is_hidden: bool) -> None:
        """Begin the next sheet; its heading is written with its first row."""
        self._heading = f"# {name}{' (hidden sheet)' if is_hidden else ''}"

    def add(self, row: int, values: Mapping[int, str]) -> None:
        """Add a row, its values by column from 1; an empty row before it begins a new table.

        A long run of empty cells becomes one cell. Values that are therefore not below the name of their
        column are prefixed with it.
        """
        self._cells += len(values)
        if self._cells > MOST_CELLS:
            raise unsafe(self._label, f"more than {MOST_CELLS:,} cells")
        begins = bool(self._heading) or row != self._last_row + 1
        header = {} if begins else self._header
        places: dict[int, tuple[int, str]] = {}
        cells: list[str] = []
        last = 0
        for column in sorted(values):
            gap = column - last - 1
            cells += [f"… {gap} empty …"] if gap > _WIDEST_GAP else [""] * gap
            place, value = len(cells), values[column]
            below, name = header.get(column, (place, ""))
            cells.append(value if below == place else f"{name}: {value}")
            places[column] = place, value[:_LONGEST_NAME]
            last = column
        line = table_row(cells)
        self._budget.spend(line)
        if self._heading:
            self.lines += ["", self._heading] if self.lines else [self._heading]
            self._heading = ""
        self.lines += ["", line, table_rule(len(cells))] if begins else [line]
        if begins:
            self._header = places
        self._last_row = row


class _Cells(Handler):
    """The values of one sheet, passed on row by row."""

    def __init__(self, text: SheetText, strings: Sequence[str], styles: Sequence[Formatter]) -> None:
        self._text = text
        self._strings = strings
        self._styles = styles
        self._row = 0
        self._values: dict[int, str] = {}
        # of the open cell
        self._column = 0
        self._kind = ""
        self._style: Formatter = plain
        self._pieces: dict[str, list[str]] = {"v": [], "t": [], "f": []}  # value, text, formula
        self._open: list[str] | None = None
        self._in_reading_aid = False

    def start(self, name: str, attributes: Attributes) -> None:
        if name == "c":
            place = attributes.get("r")
            self._column = self._column + 1 if place is None else _column(place)
            self._kind = attributes.get("t", "n")
            style = int(attributes.get("s") or 0)  # some programs write an empty attribute
            self._style = self._styles[style] if 0 <= style < len(self._styles) else plain
            for pieces in self._pieces.values():
                pieces.clear()
        elif name in self._pieces:
            self._open = None if self._in_reading_aid else self._pieces[name]
        elif name == "row":
            self._row = int(attributes.get("r", self._row + 1))
            self._column = 0
        elif name == "rPh":
            self._in_reading_aid = True

    def end(self, name: str) -> None:
        if name in self._pieces:
            self._open = None
        elif name == "c":
            if value := self._value():
                self._values[self._column] = value
        elif name == "row":
            if self._values:
                self._text.add(self._row, self._values)
            self._values = {}
        elif name == "rPh":
            self._in_reading_aid = False

    def characters(self, text: str) -> None:
        if self._open is not None:
            self._open.append(text)

    def _value(self) -> str:
        value, text, formula = ("".join(pieces) for pieces in self._pieces.values())
        if text:
            return _words(text)
        if not value:
            # Programs that do not calculate omit the value.
            return _words(f"={formula}") if formula else ""
        match self._kind:
            case "s":
                if not 0 <= (number := int(value)) < len(self._strings):
                    raise damaged(_FORMAT.label, "a text is missing")
                return self._strings[number]
            case "b":
                return "TRUE" if value == "1" else "FALSE"
            case "n":
                return self._style(value)
            case _:
                return _words(value)


def _column(place: str) -> int:
    """Return the column number of a cell reference, from 1: 28 for "AB7"."""
    found = _PLACE.fullmatch(place)
    column = 0
    for letter in found[1] if found else "":
        column = column * 26 + ord(letter) - ord("A") + 1
    if not 1 <= column <= _MOST_COLUMNS:
        raise damaged(_FORMAT.label, "a cell has no place")
    return column


def _words(text: str) -> str:
    return one_line(_CONTROL.sub(" ", text))


def formatter(number: int, code: str, *, from_1904: bool) -> Formatter:
    """Return the formatter for number format `number` with its code, or "". Dates count from 1900 or 1904."""
    if len(code) > _LONGEST_CODE:
        return plain
    first_section = _LITERAL.sub("", code).partition(";")[0]
    if number in _DURATIONS if not code else _ELAPSED.search(first_section):
        return _duration
    if number in _TIMES if not code else _TIME.search(first_section):
        return partial(_moment, from_1904=from_1904)
    if number in _PERCENTAGES if not code else "%" in first_section:
        return lambda raw: f"{float(raw) * 100:.15g}%"
    return _with_literals(code)


def plain(raw: str) -> str:
    """Format a number with the 15 digits that a workbook keeps."""
    return raw if _WHOLE.fullmatch(raw) else f"{float(raw):.15g}"


class _Section(NamedTuple):
    """A section of a format code: its runs of digits, and the literals before, between and after them."""

    literals: list[str]  # one more than the runs of digits
    digits: list[str]

    @property
    def unit(self) -> str:
        """The literals without signs."""
        return "".join(self.literals).translate(_NO_SIGNS)


def _sections(code: str) -> list[_Section]:
    sections = [_Section([""], [])]
    for part in _PART.finditer(code):
        kind = part.lastgroup
        if kind == "end":
            sections.append(_Section([""], []))
        elif kind == "digits":
            sections[-1].digits.append(part[0])
            sections[-1].literals.append("")
        elif kind:
            sections[-1].literals[-1] += part[kind]
    return sections


def _with_literals(code: str) -> Formatter:
    """Return a formatter that adds a code's literals, as a unit, and its leading zeros to `plain`."""
    first, *others = _sections(code)
    zeros = "".join(first.digits).count("0") if set("".join(first.digits)) == {"0"} else 0
    is_number = len(first.digits) == 1 and _DIGITS.fullmatch(first.digits[0]) is not None
    if not (zeros or is_number) or (zeros < 2 and not first.unit):
        return plain
    is_for_negative = not others or others[0].unit == first.unit

    def put_out(raw: str) -> str:
        value = plain(raw)
        sign, number = ("-", value[1:]) if value.startswith("-") else ("", value)
        if (sign and not is_for_negative) or (number == "0" and len(others) > 1):
            return value
        if zeros and _WHOLE.fullmatch(number):
            return one_line(sign + _filled(first, number.zfill(zeros), zeros))
        if not is_number:
            return value
        before, after = first.literals
        return one_line(f"{sign}{before.lstrip()}{number}{after}")

    return put_out


def _filled(section: _Section, number: str, zeros: int) -> str:
    """Fill the digits into the zeros of a section; surplus digits go to the first one."""
    pieces = [section.literals[0].lstrip()]
    at = 0
    for run, literal in zip(section.digits, section.literals[1:], strict=True):
        end = at + len(run) + (0 if at else len(number) - zeros)
        pieces += [number[at:end], literal]
        at = end
    return "".join(pieces)


def _duration(raw: str) -> str:
    hours = float(raw) * 24
    if not 0 <= hours < _MOST_HOURS:
        return plain(raw)
    minutes, seconds = divmod(round(hours * 3600), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _moment(raw: str, *, from_1904: bool) -> str:
    """Format a date, with the time unless it is 0:00; a value below 1 is a time alone."""
    value = float(raw)
    if not 0 <= value < _DAYS:
        return plain(raw)
    days, seconds = divmod(round(value * _DAY_SECONDS), _DAY_SECONDS)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}"
    if seconds % 60:
        clock += f":{seconds % 60:02}"
    if value < 1:
        return clock
    # Day 0. In the 1900 system workbooks have a 29 February 1900, which is day 60.
    first_day = date(1899, 12, 30) if days >= 60 else date(1899, 12, 31)
    day = (date(1904, 1, 1) if from_1904 else first_day) + timedelta(days)
    return f"{day.isoformat()} {clock}" if seconds else day.isoformat()
