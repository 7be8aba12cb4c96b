"""Bytes into characters, strictly: what cannot be decoded is refused, never guessed."""

from __future__ import annotations

import codecs

from msgspec.structs import replace

from kb_readers.failures import ExtractionFailed
from kb_readers.markdown import title_of
from kb_readers.model import Extraction, Page

FEW_LETTERS = 100
"""A page with fewer may be a scan that bears a stamp or its number as text."""

# UTF-32's little-endian mark begins with UTF-16's, so it is looked for first.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding_by_mark(data: bytes) -> str | None:
    """The encoding of a byte order mark at the start; decoding by it removes the mark."""
    return next((encoding for mark, encoding in _MARKS if data.startswith(mark)), None)


def codec_named(label: str) -> str:
    """Python's own name for an encoding that is declared; empty where it knows none."""
    try:
        return codecs.lookup(label).name
    except (LookupError, ValueError):  # the latter of a label that is not ASCII, or holds a NUL character
        return ""


def decode(data: bytes, encoding: str) -> str:
    """The text, or ExtractionFailed "undecodable_text". Text with a NUL character is not text."""
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ExtractionFailed(
            "undecodable_text",
            f"The file is not {encoding.removesuffix('-sig').upper()} text "
            f"(byte {error.start + 1} cannot be decoded). Save it as UTF-8 and try again.",
        ) from None
    if "\0" in text:
        raise ExtractionFailed(
            "undecodable_text",
            "The file has NUL characters: it is binary, or UTF-16 without a byte order mark. "
            "Save it as UTF-8 text and try again.",
        )
    return text


def read_text(data: bytes, mime_type: str) -> Extraction:
    """Plain text, data or Markdown as one page without a number: UTF-8, or as a byte order mark says."""
    text = decode(data, encoding_by_mark(data) or "utf-8")
    extraction = Extraction([Page(None, text)], None, "text_extraction", mime_type)
    return replace(extraction, title=title_of(text)) if extraction.is_markdown else extraction


def count_letters(text: str) -> int:
    """How many characters are not white space."""
    return len("".join(text.split()))


def has_few_letters(text: str) -> bool:
    """Whether there is so little text on a page that there may be more to see on it."""
    return count_letters(text) < FEW_LETTERS
