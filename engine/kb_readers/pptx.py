"""PPTX slide by slide: the title as heading, texts and tables in reading order, then the notes."""

from __future__ import annotations

from collections.abc import Callable

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import damaged
from kb_readers.linear import TERMS, LinearText
from kb_readers.markdown import escaped, given_title, one_line, table
from kb_readers.model import Extraction, Page
from kb_readers.xml_files import Attributes, Handler, Package, reference

_FORMAT = FORMATS["pptx"]
_TITLES = frozenset(["title", "ctrTitle"])
# Placeholders that repeat the page, and on a page of notes its slide.
_NUMBER = frozenset(["sldNum"])
_NOTES_FRAME = frozenset(["sldNum", "hdr", "ftr", "dt", "sldImg"])


def read_pptx(data: bytes) -> Extraction:
    """Return one page per slide, in order; hidden slides are marked. Raises ExtractionFailed."""
    package = Package(data, _FORMAT, ("presentationml", "vnd.ms-powerpoint."))
    outgoing = package.relationships(package.main)
    try:
        slides = package.elements(package.main, "sldId", is_optional=False)
        parts = [outgoing[reference(each)].part for each in slides.attributes]
    except KeyError:
        raise damaged(_FORMAT.label, "a slide is missing") from None
    texts = [_slide(package, part, number) for number, part in enumerate(parts, start=1)]
    pages = [Page(number, text) for number, (_, text) in enumerate(texts, start=1)]
    title = package.title or given_title(next((title for title, _ in texts), None))
    return Extraction(pages, title, "text_extraction", _FORMAT.mime_type)


def _slide(package: Package, part: str, number: int) -> tuple[str, str]:
    """Return the title and the text of a slide; both are empty for an empty slide."""
    outgoing = package.relationships(part)

    def diagram(id_: str) -> list[str]:
        """Return the texts of a SmartArt, which is a separate part."""
        inner = _Shapes()
        if (where := outgoing.get(id_)) is not None:
            package.feed(where.part, inner)
        return inner.blocks

    shapes = _Shapes(unread=_NUMBER, diagram=diagram)
    package.feed(part, shapes)
    blocks = shapes.blocks
    if notes := next((each.part for each in outgoing.values() if each.kind == "notesSlide"), None):
        beside = _Shapes(unread=_NOTES_FRAME)
        package.feed(notes, beside)
        title = [escaped(beside.title)] if beside.title else []
        if title or beside.blocks:
            blocks += ["## Notes", *title, *beside.blocks]
    if not (blocks or shapes.title):
        return "", ""
    # A slide without a title gets a heading too, to separate it from the slide before.
    heading = f"# {shapes.title or f'Slide {number}'}{' (hidden slide)' if shapes.is_hidden else ''}"
    return shapes.title, "\n\n".join([heading, *blocks])


class _Shapes(Handler):
    """Collects the texts of one part, shape by shape, while its elements go by."""

    def __init__(
        self, *, unread: frozenset[str] = frozenset(), diagram: Callable[[str], list[str]] = lambda _: []
    ) -> None:
        """Ignore placeholders of the types `unread`; `diagram` returns the texts of a SmartArt by its id."""
        self.title = ""
        self.is_hidden = False
        self.blocks: list[str] = []
        self._unread = unread
        self._diagram = diagram
        self._fallbacks = 0  # open alternatives, for older programs, of content already read
        self._role = ""  # the type of the shape's placeholder
        self._lines: list[str] = []  # of the open shape, or of the open cell
        self._line = LinearText()  # of the open paragraph
        self._in_text = False
        self._row: list[str] = []
        self._rows: list[list[str]] = []

    def start(self, name: str, attributes: Attributes) -> None:
        if name == "Fallback":
            self._fallbacks += 1
        elif self._fallbacks:
            return
        elif name == "t":
            self._in_text = True
        elif name == "br":
            self._line.parts.append("\n")
        elif name in ("r", "fld"):
            self._line.begin_run()
        elif name == "rPr":  # a subscript has a negative baseline
            self._line.raised = "0" < attributes.get("baseline", "")[:1] <= "9"
        elif name in TERMS:
            self._line.begin_term(name)
        elif name == "ph":
            self._role = attributes.get("type", "body")
        elif name == "relIds":
            self.blocks += self._diagram(reference(attributes, "dm"))
        elif name == "sld":
            self.is_hidden = attributes.get("show") in ("0", "false")

    def end(self, name: str) -> None:
        if name == "Fallback":
            self._fallbacks -= 1
        elif self._fallbacks:
            return
        elif name == "t":
            self._in_text = False
        elif name in TERMS:
            self._line.end_term(name)
        elif name == "p":
            self._lines += filter(None, map(one_line, self._line.text.split("\n")))
            self._line = LinearText()
        elif name in ("sp", "cxnSp", "pt"):  # `pt` is a shape of a SmartArt
            self._end_shape()
        elif name == "tc":
            self._row.append(" ".join(self._lines))
            self._lines = []
        elif name == "tr":
            if any(self._row):
                self._rows.append(self._row)
            self._row = []
        elif name == "tbl":
            if self._rows:
                self.blocks.append(table(self._rows))
            self._rows = []

    def characters(self, text: str) -> None:
        if self._in_text and not self._fallbacks:
            self._line.write(text)

    def _end_shape(self) -> None:
        lines, role = self._lines, self._role
        self._lines, self._role = [], ""
        if not lines or role in self._unread:
            return
        if role in _TITLES and not self.title:
            self.title = " ".join(lines)
        else:
            self.blocks.append("\n".join(map(escaped, lines)))
