"""SVG as displayed: title, descriptions and texts, in the order of the file.

No other file is fetched, and no part of this one is run: scripts, styles and links are ignored.
"""

from __future__ import annotations

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import ExtractionFailed
from kb_readers.markdown import escaped, given_title, one_line
from kb_readers.model import Extraction, TextBudget
from kb_readers.xml_files import Attributes, Handler, parse, refuse_growing_entities

_FORMAT = FORMATS["svg"]
_LONGEST_TITLE = 500

# With their namespaces; elements without a namespace are taken for SVG.
_SVG = "http://www.w3.org/2000/svg "
_HTML = "http://www.w3.org/1999/xhtml "
_TEXTS = frozenset(["title", "desc", "text", "foreignObject"])
_HIDDEN = frozenset(["script", "style", "metadata"])
_LINES = frozenset([*_TEXTS, *(_HTML + name for name in ("br", "div", "p", "li", "tr", "td"))])


def read_svg(data: bytes) -> Extraction:
    """Return the whole drawing as one page without a number. Raises ExtractionFailed."""
    drawing = _Drawing()
    parse(
        data,
        drawing,
        _FORMAT.label,
        refuse_entities=refuse_growing_entities,
        name_of=lambda name: name.removeprefix(_SVG),
    )
    heading = [f"# {drawing.title}"] if drawing.title else []
    text = "\n\n".join([*heading, "\n".join(drawing.lines)]).strip("\n")
    return Extraction.of_text(_FORMAT, text, given_title(drawing.title))


class _Drawing(Handler):
    """Collects lines of text while the elements go by."""

    def __init__(self) -> None:
        self.title = ""
        self.lines: list[str] = []
        self._budget = TextBudget()
        self._depth = 0  # of the innermost open element; the root's is 1
        self._hidden_depth = 0  # of the outermost open hidden element, or 0
        self._text_depth = 0  # of the outermost open element whose text is collected, or 0
        self._is_title = False
        self._switches: dict[int, int] = {}  # number of children so far of each open `switch`, by depth
        self._parts: list[str] = []
        self._y = ""  # vertical position of the line being collected

    def start(self, name: str, attributes: Attributes) -> None:
        self._depth += 1
        if self._depth == 1 and name != "svg":
            raise ExtractionFailed("file_corrupt", "The file is no SVG, although its name says so.")
        if self._hidden_depth:
            return
        before = self._switches.get(self._depth - 1)
        if before is not None and name not in _HIDDEN:
            self._switches[self._depth - 1] = before + 1
        if name in _HIDDEN or before:  # a further child of a `switch`, of which only one is shown
            self._hidden_depth = self._depth
        elif name == "switch":
            self._switches[self._depth] = 0
        elif not self._text_depth and name in _TEXTS:
            self._text_depth = self._depth
            # The title of the drawing is a child of its root; further titles belong to parts.
            self._is_title = name == "title" and self._depth == 2 and not self.title
            self._y = attributes.get("y", "")
        elif name in _LINES or (name == "tspan" and self._is_new_line(attributes)):
            self._parts.append("\n")

    def end(self, _name: str) -> None:
        self._switches.pop(self._depth, None)
        if self._depth == self._hidden_depth:
            self._hidden_depth = 0
        elif self._depth == self._text_depth:
            self._end_text()
        self._depth -= 1

    def characters(self, text: str) -> None:
        if self._text_depth and not self._hidden_depth:
            self._parts.append(text.replace("\n", " "))

    def _is_new_line(self, attributes: Attributes) -> bool:
        """True if a piece of text is placed below the previous one, not merely beside it."""
        y, self._y = self._y, attributes.get("y", self._y)
        return "x" in attributes and (self._y != y or attributes.get("dy", "0") != "0")

    def _end_text(self) -> None:
        lines = [line for line in map(one_line, "".join(self._parts).split("\n")) if line]
        self._parts, self._text_depth = [], 0
        if self._is_title:
            self.title = " ".join(lines)[:_LONGEST_TITLE]
            return
        for line in lines:
            self._budget.spend(line)
            self.lines.append(escaped(line))
