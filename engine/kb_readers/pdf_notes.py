"""Form values, notes and comments of a PDF, which PDFium keeps apart; no script is run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pypdfium2 import raw

from kb_readers.markdown import escaped, one_line

_MOST = 1_000  # annotations per page, and options per field, that are examined
_MOST_CHARACTERS = 50_000  # maximum text from one page
_MOST_BYTES = 1 << 20  # maximum size of a string
_LONGEST_NAME = 200
_OFTEN_REPEATED = 20  # a longer note in the page's text is a repetition; a shorter one may be a new word
_UNSEEN = raw.FPDF_ANNOT_FLAG_HIDDEN | raw.FPDF_ANNOT_FLAG_NOVIEW
_NOTES = frozenset(
    [
        raw.FPDF_ANNOT_TEXT, raw.FPDF_ANNOT_FREETEXT, raw.FPDF_ANNOT_HIGHLIGHT, raw.FPDF_ANNOT_UNDERLINE,
        raw.FPDF_ANNOT_SQUIGGLY, raw.FPDF_ANNOT_STRIKEOUT, raw.FPDF_ANNOT_CARET, raw.FPDF_ANNOT_STAMP,
        raw.FPDF_ANNOT_LINE, raw.FPDF_ANNOT_SQUARE, raw.FPDF_ANNOT_CIRCLE, raw.FPDF_ANNOT_POLYGON,
        raw.FPDF_ANNOT_POLYLINE, raw.FPDF_ANNOT_INK,
    ]
)  # fmt: skip
_CHOICES = frozenset([raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX])


def notes_of(document: Any, page: Any, text: str) -> str:
    """Return fields and notes that `text` lacks, a line each; fields only after `init_forms()`."""
    count = raw.FPDFPage_GetAnnotCount(page)
    if count <= 0:
        return ""
    standing = one_line(text)
    found: dict[str, None] = {}  # a field that appears twice is listed once
    left = _MOST_CHARACTERS
    for index in range(min(count, _MOST)):
        with _annotation(page, index) as annotation:
            name, value = _written(document.formenv, annotation) if annotation else ("", "")
        value = value[:left].translate(_NO_TEXT)
        words = one_line(value)
        if not words or (len(words) >= _OFTEN_REPEATED and words in standing):
            continue
        left -= len(value)
        lines = [one_line(line) for line in value.splitlines()]
        if name:
            lines = [f"{name}: {words}"] if len(lines) == 1 else [f"{name}:", *lines]
        found["\n".join(escaped(line) for line in lines if line)] = None
    return "\n".join(found)


_NO_TEXT = dict.fromkeys([*range(9), *range(14, 32), 0xFFFE, 0xFFFF])


@contextmanager
def _annotation(page: Any, index: int) -> Iterator[Any]:
    annotation = raw.FPDFPage_GetAnnot(page, index)
    try:
        yield annotation
    finally:
        if annotation:
            raw.FPDFPage_CloseAnnot(annotation)


def _written(form: Any, annotation: Any) -> tuple[str, str]:
    """Return the name and the value of a field, or "" and the text of a note."""
    if raw.FPDFAnnot_GetFlags(annotation) & _UNSEEN:
        return "", ""
    kind = raw.FPDFAnnot_GetSubtype(annotation)
    if kind in _NOTES:
        return "", _string(raw.FPDFAnnot_GetStringValue, annotation, b"Contents")
    if kind != raw.FPDF_ANNOT_WIDGET or form is None:
        return "", ""
    field = raw.FPDFAnnot_GetFormFieldType(form, annotation)
    value = ""
    if field in _CHOICES:
        chosen = range(min(raw.FPDFAnnot_GetOptionCount(form, annotation), _MOST))
        value = ", ".join(
            _string(raw.FPDFAnnot_GetOptionLabel, form, annotation, index)
            for index in chosen
            if raw.FPDFAnnot_IsOptionSelected(form, annotation, index)
        )
    elif field != raw.FPDF_FORMFIELD_TEXTFIELD or (
        raw.FPDFAnnot_GetFormFieldFlags(form, annotation) & raw.FPDF_FORMFLAG_TEXT_PASSWORD
    ):
        return "", ""
    value = value or _string(raw.FPDFAnnot_GetFormFieldValue, form, annotation)
    if not value:
        return "", ""
    for name in (raw.FPDFAnnot_GetFormFieldAlternateName, raw.FPDFAnnot_GetFormFieldName):
        if words := one_line(_string(name, form, annotation)):
            return words[:_LONGEST_NAME], value
    return "", value


def _string(read: Callable[..., int], *of: Any) -> str:
    """Read a PDFium string; "" if it is longer than any note."""
    size = read(*of, None, 0)
    if not 2 < size <= _MOST_BYTES:
        return ""
    units = (ctypes.c_ushort * (size // 2))()
    read(*of, units, size)
    return bytes(units).decode("utf-16-le", "replace").rstrip("\0")
