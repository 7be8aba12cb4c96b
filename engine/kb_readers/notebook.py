"""Jupyter notebooks (nbformat 3 and 4): Markdown cells as they are, code and outputs in fences.

Of an output only its plain text is read: pictures and HTML repeat it. Members of unknown types are ignored.
Nothing is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import damaged, unsafe
from kb_readers.markdown import fenced, given_title, title_of
from kb_readers.model import Extraction, TextBudget
from kb_readers.text import decode_marked

_FORMAT = FORMATS["ipynb"]
_COLOURS = re.compile(r"\x1b\[[\d;]{0,20}[A-Za-z]")


def read_notebook(data: bytes) -> Extraction:
    """Return all cells in order as one page without a number. Raises ExtractionFailed."""
    text = decode_marked(data)
    try:
        notebook = json.loads(text)  # takes NaN, as notebooks contain it
    except ValueError as error:
        raise damaged(_FORMAT.label, str(error)) from None
    except RecursionError:
        raise unsafe(_FORMAT.label, "values nested too deeply") from None
    if not isinstance(notebook, dict) or not {"cells", "worksheets"} & notebook.keys():
        raise damaged(_FORMAT.label, "it has no cells")
    metadata = _object(notebook, "metadata")
    language = _text(_object(metadata, "language_info"), "name")
    sheets = [notebook, *_objects(notebook, "worksheets")]  # nbformat 3 has its cells in sheets
    budget = TextBudget()
    parts: list[str] = []
    for cell in (cell for sheet in sheets for cell in _objects(sheet, "cells")):
        for part in _parts(cell, language if language.isalnum() else ""):
            budget.spend(part)
            parts.append(part)
    whole = "\n\n".join(parts)
    title = given_title(_text(metadata, "title")) or title_of(whole)
    return Extraction.of_text(_FORMAT, whole, title)


def _parts(cell: dict[str, Any], language: str) -> Iterator[str]:
    source = _text(cell, "source") or _text(cell, "input")
    kind = _text(cell, "cell_type")
    if kind == "heading":
        level = cell.get("level")
        source = f"{'#' * min(max(level, 1), 6) if isinstance(level, int) else '#'} {source}"
    if source.strip():
        yield fenced(source, language) if kind in ("code", "") else source
    for output in _objects(cell, "outputs"):
        text = _text(output, "text") or _text(_object(output, "data"), "text/plain")
        if name := _text(output, "ename"):
            text = f"{name}: {_text(output, 'evalue')}"
        if text.strip():
            yield fenced(_COLOURS.sub("", text).strip("\n"))


def _object(value: dict[str, Any], name: str) -> dict[str, Any]:
    member = value.get(name)
    return member if isinstance(member, dict) else {}


def _objects(value: dict[str, Any], name: str) -> list[dict[str, Any]]:
    members = value.get(name)
    return [each for each in members if isinstance(each, dict)] if isinstance(members, list) else []


def _text(value: dict[str, Any], name: str) -> str:
    """Return a member that is a text, or the lines of a text with their ends, or ""."""
    member = value.get(name)
    lines = member if isinstance(member, list) else [member]
    text = "".join(line for line in lines if isinstance(line, str)).replace("\0", "")
    return text.encode("utf-8", "replace").decode()
