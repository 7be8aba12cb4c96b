"""Files with the name of an old Office format and the content of another one, as programs export them."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from importlib import import_module

from msgspec.structs import replace

from kb_contracts.api.formats import Format
from kb_readers.failures import ExtractionFailed, damaged
from kb_readers.model import PLAIN_TEXT, Extraction
from kb_readers.ole import MAGIC
from kb_readers.text import decode, encoding_by_mark, read_text

_HEAD_BYTES = 4096
_NEWER = {"doc": ("docx", "read_docx"), "xls": ("xlsx", "read_xlsx"), "ppt": ("pptx", "read_pptx")}


def read_disguised(data: bytes, fmt: Format) -> Extraction | None:
    """Return the text of RTF, HTML, XML, a saved page, a newer Office file, a table between tabs, or plain
    text, which Graphviz has under the extension of a Word template.

    Return None for a compound file.

    Raises ExtractionFailed as the reader of that format, or "file_corrupt" for other content.
    """
    if data.startswith(MAGIC):
        return None
    if (marked := encoding_by_mark(data)) is not None:
        data = codecs.BOM_UTF8 + decode(data, marked).encode()
    head = data[:_HEAD_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if head.startswith(b"{\\rtf"):
        module, function = "rtf", "read_rtf"
    elif head.startswith(b"pk\x03\x04"):
        module, function = _NEWER[fmt.name]
    elif head.startswith(b"<?xml") and b"<html" not in head:
        module, function = "xml_text", "read_xml"
    elif head.startswith(b"<"):
        module, function = "html", "read_html"
    elif b"mime-version:" in head:
        module, function = "mhtml", "read_mhtml"
    elif fmt.name == "xls" and b"\t" in head and b"\0" not in head:
        module, function = "delimited", "read_delimited"
    elif fmt.name == "doc" and (text := _plain(data)) is not None:
        return text
    else:
        raise damaged(fmt.label, "its content is of another format")
    # Imported late: each of these readers is seldom used here.
    read: Callable[[bytes], Extraction] = getattr(import_module(f"kb_readers.{module}"), function)
    return replace(read(data), mime_type=fmt.mime_type)


def _plain(data: bytes) -> Extraction | None:
    """Return the text of a file that is UTF-8, or None."""
    try:
        found = read_text(data, PLAIN_TEXT)
    except ExtractionFailed:
        return None
    return found if found.pages[0].text.strip() else None
