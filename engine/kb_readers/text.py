"""Strict decoding of bytes. An encoding that is not declared is detected, or the text is refused."""

from __future__ import annotations

import codecs
import re
from functools import cache

from msgspec.structs import replace

from kb_contracts.api.formats import Format
from kb_contracts.semantics.encodings import codec_of
from kb_readers.detection import detect, label_of
from kb_readers.failures import ExtractionFailed
from kb_readers.markdown import given_title, title_of
from kb_readers.model import Extraction, Page

FEW_LETTERS = 100
"""Minimum letters of a page with text; with fewer it may be a scan with a stamp or page number as text."""

# UTF-32's little-endian mark begins with UTF-16's, so it is tested first.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DECLARED = re.compile(
    rb"<\?xml[^>]{0,200}\bencoding\s*=\s*[\"']?\s*([\w.:-]+)|<meta[^>]{0,500}\bcharset\s*=\s*[\"']?\s*([\w.:-]+)",
    re.IGNORECASE,
)
_HEAD_BYTES = 4096
_DECLARING = frozenset(["html", "xml"])  # formats whose text may declare its encoding
_JIS = {"euc_jp": 0xA0, "iso2022_jp": 0x20}
"""Encodings of JIS X 0208, and the offset of their bytes from its rows and cells."""
_ADDING = "kb_readers.additions_to_jis"


def encoding_by_mark(data: bytes) -> str | None:
    """Return the encoding of a byte order mark, or None; decoding with it removes the mark."""
    return next((encoding for mark, encoding in _MARKS if data.startswith(mark)), None)


def declared_label(data: bytes) -> str | None:
    """Return the label of the encoding that HTML or XML declares, or None."""
    declared = _DECLARED.search(data, 0, _HEAD_BYTES)
    return None if declared is None else (declared[1] or declared[2]).decode("ascii", "replace")


def in_known_encoding(data: bytes, fmt: Format) -> tuple[bytes, str | None]:
    """Return a text in UTF-8 with a byte order mark, and the detected encoding.

    Return the data unchanged, and None, if the format is not text, the encoding is declared or UTF-8, or it
    cannot be detected with certainty.
    """
    if not fmt.is_text or encoding_by_mark(data) is not None or _is_utf8(data):
        return data, None
    if fmt.name in _DECLARING and declared_label(data) is not None:
        return data, None
    detected = detect(data)
    if detected is None:
        return data, None
    return codecs.BOM_UTF8 + data.decode(detected).encode(), label_of(detected)


def _is_utf8(data: bytes) -> bool:
    """True if it is UTF-8 without NUL characters, which UTF-16 has."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def codec_named(label: str) -> str:
    """Return Python's name of a declared encoding, or "" if it is unknown."""
    try:
        return codecs.lookup(label).name
    except (LookupError, ValueError):  # ValueError for labels that are not ASCII, or have a NUL character
        return codec_of(label) or ""


def decode(data: bytes, encoding: str) -> str:
    """Decode text strictly. Raises ExtractionFailed "undecodable_text", also for NUL characters."""
    if encoding in _JIS:
        codecs.register_error(_ADDING, _add)
    try:
        text = data.decode(encoding, _ADDING if encoding in _JIS else "strict")
    except UnicodeDecodeError as error:
        doubt, advice = (
            ("", "")
            if encoding != "utf-8"
            else (", and no other encoding is certain", ", or name its encoding (kb add --encoding)")
        )
        raise ExtractionFailed(
            "undecodable_text",
            f"The file is not {encoding.removesuffix('-sig').upper()} text "
            f"(byte {error.start + 1} cannot be decoded){doubt}. Save it as UTF-8{advice}, and try again.",
        ) from None
    if "\0" in text:
        raise ExtractionFailed(
            "undecodable_text",
            "The file has NUL characters: it is binary, or UTF-16 without a byte order mark. "
            "Save it as UTF-8 text and try again.",
        )
    return text


def decode_marked(data: bytes) -> str:
    """Decode text in the encoding of its byte order mark, or UTF-8, as `decode` does."""
    return decode(data, encoding_by_mark(data) or "utf-8")


@cache
def _additions(offset: int) -> dict[bytes, str]:
    """Return the characters that Windows and browsers add to JIS X 0208, rows 13 and 89 to 92: ① and ㈱."""
    trails = [*range(0x40, 0x7F), *range(0x80, 0xFD)]
    found = {}
    for row, lead in ((13, 0x87), (89, 0xED), (91, 0xEE)):  # a lead byte of Shift JIS covers two rows
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
    """Return plain text, data or Markdown as one page; the encoding is UTF-8 or that of a mark."""
    text = decode_marked(data)
    extraction = Extraction([Page(None, text)], None, "text_extraction", mime_type)
    if not extraction.is_markdown:
        return extraction
    return replace(extraction, title=given_title(_title_in_front_matter(text)) or title_of(text))


def _title_in_front_matter(text: str) -> str | None:
    if not text.startswith(("---", "+++")):
        return None
    from kb_readers.front_matter import title_in  # late: every reader would import YAML at its start

    return title_in(text)


def count_letters(text: str) -> int:
    """Return the number of characters that are not white space."""
    return len("".join(text.split()))


def has_few_letters(text: str) -> bool:
    """True if a page has so little text that it may show more."""
    return count_letters(text) < FEW_LETTERS
