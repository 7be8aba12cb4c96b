"""Bytes into characters, strictly: what cannot be decoded is refused, never guessed."""

from __future__ import annotations

import codecs
from functools import cache

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
_JIS = {"euc_jp": 0xA0, "iso2022_jp": 0x20}
"""Encodings of JIS X 0208, and what their bytes are more than its rows and cells."""
_ADDING = "kb_readers.additions_to_jis"


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
    if encoding in _JIS:
        codecs.register_error(_ADDING, _add)
    try:
        text = data.decode(encoding, _ADDING if encoding in _JIS else "strict")
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


@cache
def _additions(offset: int) -> dict[bytes, str]:
    """What Windows, and so browsers, have in the rows 13 and 89 to 92 of JIS X 0208, such as ① and ㈱."""
    trails = [*range(0x40, 0x7F), *range(0x80, 0xFD)]
    found = {}
    for row, lead in ((13, 0x87), (89, 0xED), (91, 0xEE)):  # a lead of Shift JIS is two rows
        for place, trail in enumerate(trails):
            pair = bytes([offset + row + place // 94, offset + 1 + place % 94])
            found[pair] = bytes([lead, trail]).decode("cp932", "replace")
    return {pair: text for pair, text in found.items() if "\N{REPLACEMENT CHARACTER}" not in text}


def _add(error: UnicodeError) -> tuple[str, int]:
    if isinstance(error, UnicodeDecodeError):
        end = error.start + 2
        if added := _additions(_JIS[error.encoding]).get(error.object[error.start : end]):
            return added, end
    raise error


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
