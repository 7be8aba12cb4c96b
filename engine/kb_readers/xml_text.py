"""XML of any vocabulary: its text, with one line for each run of text between two tags.

Attributes are left out. A document type may be declared, but no entity of text: internal entities multiply,
and external ones name other files. Unparsed entities, such as the pictures of a patent, are never read.
"""

from __future__ import annotations

from xml.parsers import expat

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import ExtractionFailed
from kb_readers.markdown import escaped, one_line
from kb_readers.model import Extraction, Page, TextBudget
from kb_readers.text import encoding_by_mark
from kb_readers.xml_files import Attributes, Handler, parser_for, unsound

_FORMAT = FORMATS["xml"]


def read_xml(data: bytes) -> Extraction:
    """Return the whole file as one page without a number. Raises ExtractionFailed."""
    text = _Lines()
    mark = encoding_by_mark(data)
    parser = parser_for(text, _FORMAT.label, encoding=mark.removesuffix("-sig") if mark else None)
    parser.EntityDeclHandler = _refuse_entities
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise unsound(_FORMAT.label, error) from None
    text.end("")
    return Extraction([Page(None, "\n".join(text.lines))], None, "text_extraction", _FORMAT.mime_type)


def _refuse_entities(*declaration: object) -> None:
    if declaration[-1] is not None:  # the notation of an unparsed entity
        return
    raise ExtractionFailed(
        "file_corrupt",
        "The XML file defines entities, which are not read. Save it without them and send it again.",
    )


class _Lines(Handler):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._piece: list[str] = []
        self._budget = TextBudget()

    def start(self, name: str, _attributes: Attributes) -> None:
        self.end(name)

    def end(self, _name: str) -> None:
        line = one_line("".join(self._piece))
        self._piece.clear()
        if line:
            self.lines.append(escaped(line))

    def characters(self, text: str) -> None:
        self._budget.spend(text)
        self._piece.append(text)
