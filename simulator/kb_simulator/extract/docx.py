"""DOCX into paragraphs: a ZIP with XML in it, read within bounds and without entities."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from xml.parsers import expat  # entities are refused below, before any is expanded

from kb_simulator.engine.chunking import Page
from kb_simulator.extract.model import MAX_TEXT_CHARS, Extracted, ExtractionFailed, check_lock, too_much_text

_DOCUMENT = "word/document.xml"
_W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main "
_HEADING_LEVELS = 6


def read_docx(data: bytes) -> Extracted:
    """The paragraphs of the main document, headings by their style.

    Raises:
        ExtractionFailed: `file_corrupt`, `file_encrypted` or `extraction_memory`.
    """
    check_lock(data, "DOCX")
    try:
        paragraphs = _paragraphs(_main_part(data))
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, OSError, EOFError) as error:
        raise _corrupt("no ZIP with a Word document in it") from error
    except (zlib.error, expat.ExpatError) as error:
        raise _corrupt(str(error)) from error
    text = "\n\n".join(paragraphs)
    title = next((line[2:] for line in paragraphs if line.startswith("# ")), None)
    return Extracted([Page(None, text)], title)


def _main_part(data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open(_DOCUMENT) as part:
        # The announced size is the sender's word; what is read is bounded whatever it says.
        xml = part.read(MAX_TEXT_CHARS + 1)
    if len(xml) > MAX_TEXT_CHARS:
        raise too_much_text()
    return xml


def _paragraphs(xml: bytes) -> list[str]:
    body = _Body()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = body.start
    parser.EndElementHandler = body.end
    parser.CharacterDataHandler = body.characters
    parser.EntityDeclHandler = _refuse_entity
    parser.Parse(xml, True)
    return body.paragraphs


def _refuse_entity(*_declaration: object) -> None:
    raise _corrupt("it declares XML entities, which Word never does")


class _Body:
    """Collects paragraphs while the elements go by."""

    def __init__(self) -> None:
        self.paragraphs: list[str] = []
        self._runs: list[str] = []
        self._level = 0
        self._in_text = False

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        match name.removeprefix(_W):
            case "t":
                self._in_text = True
            case "tab":
                self._runs.append("\t")
            case "br" | "cr":
                self._runs.append("\n")
            case "pStyle":
                self._level = _level(attributes.get(_W + "val", ""))
            case _:
                pass

    def end(self, name: str) -> None:
        match name.removeprefix(_W):
            case "t":
                self._in_text = False
            case "p":
                self._end_paragraph()
            case _:
                pass

    def characters(self, data: str) -> None:
        if self._in_text:
            self._runs.append(data)

    def _end_paragraph(self) -> None:
        if text := "".join(self._runs).strip():
            self.paragraphs.append(f"{'#' * self._level} {text}" if self._level else text)
        self._runs, self._level = [], 0


def _level(style: str) -> int:
    """The heading level of a paragraph's style, 0 for none."""
    if style == "Title":
        return 1
    number = style.lower().removeprefix("heading").strip()
    is_heading = style.lower().startswith("heading") and number.isascii() and number.isdigit()
    return min(int(number[:2]), _HEADING_LEVELS) if is_heading else 0


def _corrupt(why: str) -> ExtractionFailed:
    return ExtractionFailed("file_corrupt", f"This is not a readable DOCX file: {why}. Save it again.")
