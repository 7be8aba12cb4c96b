"""DOCX as one text without pages: where a page ends is decided by the program that shows it."""

from __future__ import annotations

import io
import zipfile
from typing import IO
from xml.parsers import expat

from kb_engine.extract.failures import OLE, ExtractionFailed, locked, old_or_locked, unsafe, unsound
from kb_engine.extract.formats import FORMATS
from kb_engine.extract.headings import title_of
from kb_engine.extract.model import Extraction, Page
from kb_engine.extract.package import BROKEN, ENCRYPTED
from kb_engine.extract.xberg_reader import read_markdown

_FORMAT = FORMATS["docx"]
_BODY = "word/document.xml"
_LARGEST_BODY_BYTES = 100 << 20  # xberg's own bound
_READ_BYTES = 1 << 20


def read_docx(data: bytes) -> Extraction:
    """The body with its headings, lists and tables. Raises ExtractionFailed."""
    if data.startswith(OLE):
        raise old_or_locked(data, _FORMAT.label)
    has_text = _look_through(data)
    reading = read_markdown(data, _FORMAT.mime_type, _FORMAT.label)
    text = "\n\n".join(reading.pages)
    if has_text and not text.strip():
        raise ExtractionFailed(
            "extraction_failed",
            "The document holds text that could not be read. "
            "Save it again as DOCX, or as PDF, and try once more.",
        )
    return Extraction(
        [Page(None, text)], reading.title or title_of(text), "text_extraction", _FORMAT.mime_type
    )


def _look_through(data: bytes) -> bool:
    """Whether the body holds text. Raises ExtractionFailed when it is not sound XML without entities.

    xberg takes broken XML and entities for an empty document or a shorter one, and says nothing.
    """
    scan = _Scan()
    try:
        with _body(data) as body:
            while piece := body.read(_READ_BYTES):
                scan.parser.Parse(piece, False)
                if scan.has_text:
                    scan.only_check()
        scan.parser.Parse(b"", True)
    except BROKEN as error:
        raise unsound(_FORMAT.label, error) from None
    return scan.has_text


def _body(data: bytes) -> IO[bytes]:
    archive = zipfile.ZipFile(io.BytesIO(data))
    try:
        member = archive.getinfo(_BODY)
    except KeyError:
        raise ExtractionFailed("file_corrupt", "The file is not a DOCX: it has no document in it.") from None
    if member.flag_bits & ENCRYPTED:
        raise locked(_FORMAT.label)
    if member.file_size > _LARGEST_BODY_BYTES:
        raise unsafe(_FORMAT.label, f"its text unpacks to {member.file_size:,} bytes")
    return archive.open(member)


class _Scan:
    """A pass over the body that notes whether a run of text has a visible character."""

    def __init__(self) -> None:
        self.has_text = False
        self._in_text = False
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters

    def only_check(self) -> None:
        """Look at the rest for soundness alone, which never leaves C. Not to be called by a handler."""
        self.parser.StartElementHandler = None
        self.parser.EndElementHandler = None
        self.parser.CharacterDataHandler = None

    def _doctype(self, *_: object) -> None:
        raise ExtractionFailed(
            "file_corrupt", "The DOCX defines entities, which no Word document does; it is not read."
        )

    def _start(self, name: str, _attributes: dict[str, str]) -> None:
        namespace, _, local = name.rpartition(" ")
        self._in_text = local == "t" and "wordprocessingml" in namespace

    def _end(self, _name: str) -> None:
        self._in_text = False

    def _characters(self, text: str) -> None:
        self.has_text = self.has_text or (self._in_text and not text.isspace())
