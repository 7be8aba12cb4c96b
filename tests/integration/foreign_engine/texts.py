"""Files to text, text to passages, passages to words and vectors. Pure Python and slow."""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import PurePosixPath
from xml.etree import ElementTree

import webencodings
from pypdf import PdfReader  # type: ignore[import-not-found]  # in its image only

FORMATS = {
    "txt": "txt",
    "csv": "txt",
    "md": "md",
    "markdown": "md",
    "html": "html",
    "htm": "html",
    "pdf": "pdf",
    "docx": "docx",
}
TYPES = {"txt": "text", "md": "markdown", "html": "html", "pdf": "pdf", "docx": "docx"}
DIMENSIONS = 512
PASSAGE = 700
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n{2,}")
_WORD = re.compile(r"\w+")
_WORDML = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"


class Unreadable(Exception):  # the job's error
    """A file without extractable text."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Section:
    """A part of a document; passages do not cross its ends."""

    text: str
    page: int | None = None
    heading: str | None = None


@dataclass
class Read:
    """The content of a file."""

    sections: list[Section]
    title: str | None = None
    pages: int | None = None


@dataclass
class Passage:
    """A chunk: `start` and `end` are offsets into the whole text."""

    text: str
    start: int
    end: int
    page: int | None
    heading: str | None


def format_of(filename: str) -> str | None:
    return FORMATS.get(PurePosixPath(filename).suffix.removeprefix(".").lower())


def read(data: bytes, kind: str, charset: str | None = None) -> Read:
    """Return the text of a file, whose part may have declared a charset.

    Raises:
        Unreadable: it is damaged, or not of the format in its name.
    """
    if kind == "pdf":
        return _pdf(data)
    if kind == "docx":
        return _docx(data)
    text = decoded(data, charset)
    return {"md": _markdown, "html": _html, "txt": _plain}[kind](text)


def passages(sections: Sequence[Section]) -> list[Passage]:
    """Passages of whole sentences if they fit, without gaps."""
    made, offset = [], 0
    for section in sections:
        for start, end in _spans(section.text):
            text = section.text[start:end]
            made.append(Passage(text, offset + start, offset + end, section.page, section.heading))
        offset += len(section.text) + 2
    return made


def first_line(text: str) -> str:
    """The beginning of a text, for a title."""
    return text.strip().splitlines()[0][:80]


def words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.casefold()))


def vector(text: str) -> list[float]:
    """Words and their trigrams, hashed into a vector of length 1; all zeros for a text without words."""
    values = [0.0] * DIMENSIONS
    for word, count in words(text).items():
        for feature, weight in ((word, 2.0), *((part, 0.5) for part in _trigrams(word))):
            place = int.from_bytes(blake2b(feature.encode(), digest_size=4).digest())
            values[place % DIMENSIONS] += weight * count * (1 if place >> 31 else -1)
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values] if length else values


def _trigrams(word: str) -> list[str]:
    padded = f"^{word}$"
    return [padded[at : at + 3] for at in range(len(padded) - 2)]


def _spans(text: str) -> Iterator[tuple[int, int]]:
    cuts = [0, *(match.end() for match in _SENTENCE.finditer(text)), len(text)]
    begin = end = 0
    for first, beyond in pairwise(cuts):
        if beyond - begin > PASSAGE and end > begin:
            yield from _trimmed(text, begin, end)
            begin = first
        while beyond - begin > PASSAGE:
            cut = text.rfind(" ", begin, begin + PASSAGE) + 1 or begin + PASSAGE
            yield from _trimmed(text, begin, cut)
            begin = cut
        end = beyond
    yield from _trimmed(text, begin, len(text))


def _trimmed(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    part = text[start:end]
    if part.strip():
        yield start + len(part) - len(part.lstrip()), start + len(part.rstrip())


def decoded(data: bytes, charset: str | None) -> str:
    """Return a text; a byte order mark takes precedence over the declared charset.

    Raises:
        LookupError: no encoding has the label `charset`.
        Unreadable: the text is in another encoding.
    """
    encoding = "utf-8-sig"
    if charset and (known := webencodings.lookup(charset)) is None:
        raise LookupError(charset)
    if data[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        encoding = "utf-16"
    elif charset:
        encoding = known.codec_info.name
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise Unreadable("undecodable_text", f"The text is not {encoding}; convert it.") from error


def _plain(text: str) -> Read:
    return Read([Section(text)])


def _markdown(text: str) -> Read:
    sections, heading = [], None
    for part in re.split(r"(?m)^(?=#{1,6} )", text):
        match = re.match(r"#{1,6} +(.+)", part)
        heading = match[1].strip() if match else heading
        sections.append(Section(part, heading=heading))
    title = next((section.heading for section in sections if section.heading), None)
    return Read(sections, title)


_BLOCKS = {"p", "div", "li", "tr", "br", "section", "article", "ul", "ol", "table", "body"}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}


class _Blocks(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sections = [Section("")]
        self.title = ""
        self._within: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"script", "style", "title", *_HEADINGS}:
            self._within.append(tag)
        if tag in _HEADINGS:
            self.sections.append(Section("", heading=""))
        elif tag in _BLOCKS:
            self.sections[-1].text += "\n\n"

    def handle_endtag(self, tag: str) -> None:
        if tag in self._within:
            self._within.remove(tag)
        if tag in _HEADINGS:
            self.sections[-1].text += "\n\n"

    def handle_data(self, data: str) -> None:
        inside = self._within[-1] if self._within else ""
        if inside == "title":
            self.title += data
        elif inside not in {"script", "style"}:
            self.sections[-1].text += re.sub(r"\s+", " ", data)
            if inside in _HEADINGS:
                self.sections[-1].heading = f"{self.sections[-1].heading or ''}{data}".strip()


def _html(text: str) -> Read:
    blocks = _Blocks()
    blocks.feed(text)
    blocks.close()
    return Read(blocks.sections, blocks.title.strip() or None)


def _docx(data: bytes) -> Read:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            root = ElementTree.fromstring(archive.read("word/document.xml"))  # expat limits entity expansion
    except (zipfile.BadZipFile, KeyError, ElementTree.ParseError) as error:
        raise Unreadable("file_corrupt", "This is no Word document; save it again.") from error
    sections = [Section("")]
    for paragraph in root.iter(f"{_WORDML}p"):
        text = "".join(part.text or "" for part in paragraph.iter(f"{_WORDML}t"))
        style = paragraph.find(f"{_WORDML}pPr/{_WORDML}pStyle")
        if style is not None and style.get(f"{_WORDML}val", "").lower().startswith(("heading", "title")):
            sections.append(Section("", heading=text.strip()))
        sections[-1].text += f"{text}\n\n"
    title = next((section.heading for section in sections if section.heading), None)
    return Read(sections, title)


def _pdf(data: bytes) -> Read:
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("file_encrypted", "The PDF is locked; send it without its password.")
        found = [page.extract_text() for page in reader.pages]
        title = reader.metadata.title if reader.metadata else None
    except Unreadable:
        raise
    except Exception as error:  # a hostile file can raise any exception from that library
        raise Unreadable("file_corrupt", "The PDF is damaged; save it again.") from error
    return Read([Section(text, page) for page, text in enumerate(found, 1)], title, len(found))
