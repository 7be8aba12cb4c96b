"""What a page's content stream shows: its strings in the order they are drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_TOKEN = re.compile(
    rb"\(|<<|>>|<[0-9A-Fa-f\s]*>|[\[\]]|/[^\s/<>\[\]()%]*|%[^\r\n]*|[^\s/<>\[\]()%]+",
)
_MARK = re.compile(rb"[()\\]")
_INLINE_IMAGE_END = re.compile(rb"\sEI\b")
_OCTAL = re.compile(rb"[0-7]{1,3}")
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}
_WORD_GAP = -200.0  # thousandths of the font's size: further to the right than that is a space
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")

Operand = bytes | float | list["Operand"]


def shown(content: bytes) -> str:
    """The text, a line for each line drawn."""
    page = _Lines()
    operands: list[Operand] = []
    arrays: list[list[Operand]] = []
    for item in _tokens(content):
        if not isinstance(item, str):
            (arrays[-1] if arrays else operands).append(item)
        elif item == "[":
            arrays.append([])
        elif item == "]" and arrays:
            done = arrays.pop()
            (arrays[-1] if arrays else operands).append(done)
        elif item != "]":
            page.apply(item, operands)
            operands = []
    return page.text()


class _Lines:
    def __init__(self) -> None:
        self._lines: list[str] = [""]
        self._operators: dict[str, Callable[[list[Operand]], None]] = {
            "Tj": self._show,
            "TJ": self._show,
            "'": self._show_below,
            '"': self._show_below,
            "Td": self._move,
            "TD": self._move,
            "Tm": self._break,
            "T*": self._break,
            "ET": self._break,
        }

    def apply(self, operator: str, operands: list[Operand]) -> None:
        """Do what an operator says; those that draw no text do nothing."""
        if (operation := self._operators.get(operator)) is not None:
            operation(operands)

    def text(self) -> str:
        """The lines, empty ones kept as the ends of paragraphs."""
        return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in self._lines)).strip()

    def _show(self, operands: list[Operand]) -> None:
        shown = operands[-1] if operands else b""
        for part in shown if isinstance(shown, list) else [shown]:
            if isinstance(part, bytes):
                self._lines[-1] += _decoded(part)
            elif isinstance(part, float) and part < _WORD_GAP:
                self._lines[-1] += " "

    def _show_below(self, operands: list[Operand]) -> None:
        self._break(operands)
        self._show(operands)

    def _move(self, operands: list[Operand]) -> None:
        if operands and operands[-1] == 0.0:
            self._lines[-1] += " "
        else:
            self._break(operands)

    def _break(self, _operands: list[Operand]) -> None:
        self._lines.append("")


def _decoded(raw: bytes) -> str:
    """The characters of a string; none where its codes are not characters."""
    text = raw.decode("utf-16", "replace") if raw.startswith(b"\xfe\xff") else raw.decode("cp1252", "replace")
    return "" if _CONTROL.search(text) else text


def _tokens(content: bytes) -> Iterator[str | bytes | float]:
    """Operators and brackets as str, strings as bytes, numbers as floats; names are passed over."""
    position = 0
    while found := _TOKEN.search(content, position):
        position = found.end()
        token = found[0]
        if token == b"(":
            string, position = _string(content, position)
            yield string
        elif token[:1] == b"<" and token != b"<<":
            digits = b"".join(token[1:-1].split())
            yield bytes.fromhex((digits + b"0" * (len(digits) % 2)).decode())
        elif token == b"ID":
            end = _INLINE_IMAGE_END.search(content, position)
            position = end.end() if end else len(content)
        elif token[:1] not in b"/%" and token not in (b"<<", b">>"):
            yield _number_or_operator(token.decode("latin-1"))


def _number_or_operator(token: str) -> str | float:
    try:
        return float(token)
    except ValueError:
        return token


def _string(content: bytes, position: int) -> tuple[bytes, int]:
    """A string from after its `(`, and where it ends; parentheses in it balance or are escaped."""
    parts: list[bytes] = []
    depth = 1
    while mark := _MARK.search(content, position):
        parts.append(content[position : mark.start()])
        position = mark.end()
        if mark[0] == b"\\":
            escaped, position = _escape(content, position)
            parts.append(escaped)
            continue
        depth += 1 if mark[0] == b"(" else -1
        if depth == 0:
            return b"".join(parts), position
        parts.append(mark[0])
    return b"".join(parts), len(content)


def _escape(content: bytes, position: int) -> tuple[bytes, int]:
    if octal := _OCTAL.match(content, position):
        return bytes([int(octal[0], 8) & 0xFF]), octal.end()
    char = content[position : position + 1]
    if char in (b"\n", b"\r"):  # a line broken in the file only
        return b"", position + (2 if content[position : position + 2] == b"\r\n" else 1)
    return _ESCAPES.get(char, char), position + 1
