"""Text files as they are: UTF-8, or what a byte order mark tells; nothing is guessed."""

from __future__ import annotations

import codecs

from kb_simulator.engine.chunking import Page, first_heading
from kb_simulator.extract.model import Extracted, ExtractionFailed

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins as UTF-16's does, hence asked before it
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_plain(data: bytes, *, markdown: bool) -> Extracted:
    """Plain text or Markdown, unchanged. Raises ExtractionFailed: `undecodable_text`."""
    text = decode(data)
    return Extracted([Page(None, text)], first_heading(text) if markdown else None, headings=markdown)


def decode(data: bytes) -> str:
    """The characters. Raises ExtractionFailed: `undecodable_text`."""
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ExtractionFailed(
            "undecodable_text",
            f"Byte {error.start + 1} is not {encoding.removesuffix('-sig').upper()} text. "
            "Save the file as UTF-8 and send it again.",
        ) from error
    if "\0" in text:
        raise ExtractionFailed(
            "undecodable_text", "The file has NUL characters: it is binary. Save it as UTF-8 text."
        )
    return text
