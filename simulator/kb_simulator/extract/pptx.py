"""PPTX into slides: the title as heading, texts and tables, then the notes. SmartArt is not read."""

from __future__ import annotations

from kb_simulator.engine.chunking import Page
from kb_simulator.extract.markdown import escaped, one_line, table
from kb_simulator.extract.model import Extracted
from kb_simulator.extract.package import Attributes, Package, reference

_NUMBER = frozenset({"sldNum"})
_FRAME = frozenset({"sldNum", "hdr", "ftr", "dt", "sldImg"})


def read_pptx(data: bytes) -> Extracted:
    """The slides in the order of the presentation. Raises ExtractionFailed."""
    package = Package(data, "PPTX")
    main = package.main("ppt")
    order: list[str] = []

    def start(name: str, attributes: Attributes) -> None:
        if name == "sldId":
            order.append(reference(attributes))

    package.walk(main, start)
    targets = package.targets(main)
    if any(each not in targets for each in order):
        package.refuse("a slide is missing")
    slides = [_Slide(package, targets[each].part, _NUMBER) for each in order]
    pages = [Page(number, slide.text(number)) for number, slide in enumerate(slides, start=1)]
    return Extracted(pages, next((slide.title for slide in slides[:1] if slide.title), None))


class _Slide:
    """The texts of a slide, or of a page of notes."""

    def __init__(self, package: Package, part: str, unread: frozenset[str]) -> None:
        self.title = ""
        self.blocks: list[str] = []
        self._unread = unread
        self._is_hidden = False
        self._fallbacks = 0
        self._role = ""
        self._in_text = False
        self._line: list[str] = []
        self._lines: list[str] = []
        self._row: list[str] = []
        self._rows: list[list[str]] = []
        package.walk(part, self._start, self._end, self._characters)
        notes = [each.part for each in package.targets(part).values() if each.kind == "notesSlide"]
        self._notes = _Slide(package, notes[0], _FRAME).blocks if notes and unread is _NUMBER else []

    def text(self, number: int) -> str:
        """As Markdown; empty where the slide says nothing."""
        if not (self.title or self.blocks or self._notes):
            return ""
        heading = f"# {self.title or f'Slide {number}'}{' (hidden slide)' if self._is_hidden else ''}"
        return "\n\n".join([heading, *self.blocks, *(["## Notes", *self._notes] if self._notes else [])])

    def _start(self, name: str, attributes: Attributes) -> None:
        self._fallbacks += name == "Fallback"
        if self._fallbacks:
            return
        match name:
            case "t":
                self._in_text = True
            case "br":
                self._line.append("\n")
            case "ph":
                self._role = attributes.get("type", "body")
            case "sld":
                self._is_hidden = attributes.get("show") in ("0", "false")
            case _:
                pass

    def _end(self, name: str) -> None:
        if self._fallbacks:
            self._fallbacks -= name == "Fallback"
            return
        match name:
            case "t":
                self._in_text = False
            case "p":
                self._lines += filter(None, map(one_line, "".join(self._line).split("\n")))
                self._line = []
            case "sp" | "cxnSp":
                self._end_shape()
            case "tc":
                self._row.append(" ".join(self._lines))
                self._lines = []
            case "tr":
                self._rows += [self._row] if any(self._row) else []
                self._row = []
            case "tbl":
                self.blocks += ["\n".join(table(self._rows))] if self._rows else []
                self._rows = []
            case _:
                pass

    def _characters(self, text: str) -> None:
        if self._in_text and not self._fallbacks:
            self._line.append(text)

    def _end_shape(self) -> None:
        lines, role = self._lines, self._role
        self._lines, self._role = [], ""
        if lines and role in ("title", "ctrTitle") and not self.title:
            self.title = " ".join(lines)
        elif lines and role not in self._unread:
            self.blocks.append("\n".join(map(escaped, lines)))
