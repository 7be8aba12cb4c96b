"""SVG into lines: title, descriptions and texts in the order of the file. Nothing outside it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from xml.parsers import expat  # entities that could grow are refused below, before any is expanded

from kb_simulator.engine.chunking import Page
from kb_simulator.extract.markdown import escaped, one_line
from kb_simulator.extract.model import MAX_TEXT_CHARS, Extracted, ExtractionFailed, too_much_text

_SVG = "http://www.w3.org/2000/svg "
_TEXTS = frozenset({"title", "desc", "text"})
_UNSEEN = frozenset({"script", "style", "metadata", "foreignObject"})
_LONGEST_ENTITY = 1000


def read_svg(data: bytes) -> Extracted:
    """The drawing as one page. Labels in HTML are not read. Raises ExtractionFailed."""
    drawing = _Drawing()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = drawing.start
    parser.EndElementHandler = drawing.end
    parser.CharacterDataHandler = drawing.characters
    parser.EntityDeclHandler = _refuse_what_grows
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise _corrupt(str(error)) from error
    heading = [f"# {drawing.title}"] if drawing.title else []
    text = "\n\n".join([*heading, "\n".join(drawing.lines)]).strip("\n")
    return Extracted([Page(None, text)], drawing.title or None)


class _Drawing:
    def __init__(self) -> None:
        self.title = ""
        self.lines: list[str] = []
        self._size = 0
        self._open: list[str] = []
        self._text_depth = 0
        self._unseen_depth = 0
        self._parts: list[str] = []

    def start(self, full_name: str, _attributes: Mapping[str, str]) -> None:
        """Begin to collect, or to pass over."""
        name = full_name.removeprefix(_SVG)
        if not self._open and name != "svg":
            raise _corrupt("it holds something else")
        self._open.append(name)
        if name in _UNSEEN:
            self._unseen_depth = self._unseen_depth or len(self._open)
        elif name in _TEXTS:
            self._text_depth = self._text_depth or len(self._open)

    def end(self, _name: str) -> None:
        """Keep what was collected."""
        depth, name = len(self._open), self._open.pop()
        if depth == self._unseen_depth:
            self._unseen_depth = 0
        elif depth == self._text_depth:
            line = one_line("".join(self._parts))
            self._parts, self._text_depth = [], 0
            if name == "title" and depth == 2 and not self.title:
                self.title = line
            elif line:
                self.lines.append(escaped(line))

    def characters(self, text: str) -> None:
        """Keep what a reader sees, up to a bound."""
        if self._text_depth and not self._unseen_depth:
            self._parts.append(text)
            self._size += len(text)
            if self._size > MAX_TEXT_CHARS:
                raise too_much_text()


def _refuse_what_grows(*declaration: object) -> None:
    value = declaration[2]
    if isinstance(value, str) and (len(value) > _LONGEST_ENTITY or "&" in value):
        raise _corrupt("it declares entities that grow when they are put in")


def _corrupt(why: str) -> ExtractionFailed:
    return ExtractionFailed("file_corrupt", f"This is no readable SVG file: {why}. Save it again.")
