"""Jupyter notebooks (nbformat 3 and 4): Markdown cells as they are, code and outputs in fences.

Of an output only its plain text is read: pictures and HTML repeat it. Nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from kb_contracts.api.formats import FORMATS
from kb_readers.code import fenced
from kb_readers.failures import damaged, unsafe
from kb_readers.markdown import given_title, title_of
from kb_readers.model import Extraction, Page, TextBudget
from kb_readers.text import decode, encoding_by_mark

_FORMAT = FORMATS["ipynb"]
_COLOURS = re.compile(r"\x1b\[[\d;]{0,20}[A-Za-z]")

_Text: TypeAlias = str | list[str] | None
"""Text, or its lines with their ends."""


class _Data(msgspec.Struct, rename={"plain": "text/plain"}):
    plain: _Text = None


class _Output(msgspec.Struct):
    text: _Text = None
    data: _Data = msgspec.field(default_factory=_Data)
    ename: str = ""
    evalue: str = ""


class _Cell(msgspec.Struct):
    cell_type: str = "code"
    source: _Text = None
    input: _Text = None
    """The source in nbformat 3."""
    outputs: list[_Output] = []
    level: int = 1
    """Level of a heading cell in nbformat 3."""


class _Sheet(msgspec.Struct):
    cells: list[_Cell] = []


class _Language(msgspec.Struct):
    name: str = ""


class _Metadata(msgspec.Struct):
    title: str = ""
    language_info: _Language = msgspec.field(default_factory=_Language)


class _Notebook(msgspec.Struct):
    cells: list[_Cell] = []
    worksheets: list[_Sheet] = []
    """The cells in nbformat 3."""
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


def read_notebook(data: bytes) -> Extraction:
    """Return all cells in order as one page without a number. Raises ExtractionFailed."""
    text = decode(data, encoding_by_mark(data) or "utf-8")
    try:
        notebook = msgspec.json.decode(text, type=_Notebook)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise damaged(_FORMAT.label, str(error)) from None
    except RecursionError:
        raise unsafe(_FORMAT.label, "values nested too deeply") from None
    language = notebook.metadata.language_info.name
    cells = [*notebook.cells, *(cell for sheet in notebook.worksheets for cell in sheet.cells)]
    budget = TextBudget()
    parts: list[str] = []
    for cell in cells:
        for part in _parts(cell, language if language.isalnum() else ""):
            budget.spend(part)
            parts.append(part)
    whole = "\n\n".join(parts)
    title = given_title(notebook.metadata.title) or title_of(whole)
    return Extraction([Page(None, whole)], title, "text_extraction", _FORMAT.mime_type)


def _parts(cell: _Cell, language: str) -> Iterator[str]:
    source = _joined(cell.source) or _joined(cell.input)
    if cell.cell_type == "heading":
        source = f"{'#' * min(max(cell.level, 1), 6)} {source}"
    if source.strip():
        yield fenced(source, language) if cell.cell_type == "code" else source
    for output in cell.outputs:
        text = _joined(output.text) or _joined(output.data.plain)
        if output.ename:
            text = f"{output.ename}: {output.evalue}"
        if text.strip():
            yield fenced(_COLOURS.sub("", text).strip("\n"), "")


def _joined(text: _Text) -> str:
    return ("".join(text) if isinstance(text, list) else text or "").replace("\0", "")
