"""XML of any vocabulary: its text, with one line for each run of text between two tags.

Attributes are left out. A document type may be declared, with short entities. Entities with references,
which multiply, and those of other files are refused; unparsed ones, such as pictures, are never read.
"""

from __future__ import annotations

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import ExtractionFailed
from kb_readers.markdown import escaped, one_line
from kb_readers.model import Extraction, TextBudget
from kb_readers.text import encoding_by_mark
from kb_readers.xml_files import Attributes, Handler, parse, refuse_growing_entities

_FORMAT = FORMATS["xml"]


def read_xml(data: bytes) -> Extraction:
    """Return the whole file as one page without a number. Raises ExtractionFailed."""
    text = _Lines()
    mark = encoding_by_mark(data)
    encoding = mark.removesuffix("-sig") if mark else None
    parse(data, text, _FORMAT.label, refuse_entities=_refuse_entities, encoding=encoding)
    text.end("")
    return Extraction.of_text(_FORMAT, "\n".join(text.lines), None)


def _refuse_entities(*declaration: object) -> None:
    if declaration[2] is None and declaration[-1] is None:  # neither a value nor the notation of a picture
        raise ExtractionFailed(
            "file_corrupt",
            "The XML file defines entities of other files, which are not read. Send it without them.",
        )
    refuse_growing_entities(*declaration)


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
