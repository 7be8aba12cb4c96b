"""The values of extraction: what a reader gives and what bounds it, and the messages of parent and child.

    parent ── Task, as JSON on the command line ──────────────────────────▶ child
           ◀─ Progress, in records of one size: the pages counted, each page of OCR begun ──
           ◀─ Report, as MessagePack: an Extraction or a Failure ────────────

An extraction that a child starts from is sent as a report is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import ExtractionFailed, FailureCode, too_much_text
from kb_readers.sandbox import Sandboxing

Method: TypeAlias = Literal["text_extraction", "image_analysis", "mixed_extraction"]
"""From the file's own text, by OCR, or some pages the one way and some the other."""

PLAIN_TEXT = "text/plain"
_PLAIN = frozenset({PLAIN_TEXT, *(each.mime_type for each in FORMATS.values() if each.doc_type == "data")})

_RECORD = struct.Struct("<4I")
RECORD_BYTES = _RECORD.size
"""Of the progress that a child sends."""


class Page(msgspec.Struct, frozen=True):
    """The text of one page, without NUL characters; empty where no text was found."""

    number: int | None
    """From 1; None where the format has no pages."""
    text: str
    notes: str = ""
    """What was written onto it, into a form or as notes; `text` ends with it."""

    @classmethod
    def of(cls, number: int | None, body: str, notes: str) -> Page:
        """A page with notes behind its text."""
        return cls(number, "\n\n".join(filter(None, [body, notes])), notes)

    @property
    def body(self) -> str:
        """Its text without the notes."""
        return self.text.removesuffix(self.notes).rstrip()


class Extraction(msgspec.Struct, frozen=True, tag="extraction"):
    """The text of one file, page by page, in reading order."""

    pages: list[Page]
    title: str | None
    """What the file says its title is, or its first heading of the first level."""
    method: Method
    mime_type: str
    """Of the file that was read."""
    remark: str | None = None
    """For people: what was not read, and why."""

    @classmethod
    def of_note(cls, text: str) -> Extraction:
        """The text of a note: agents write Markdown, so its headings count."""
        return cls([Page(None, text)], None, "text_extraction", "text/markdown")

    @property
    def page_count(self) -> int | None:
        """How many pages the file has; None where its format has none."""
        return max((page.number for page in self.pages if page.number is not None), default=None)

    @property
    def is_markdown(self) -> bool:
        """Whether the text has Markdown headings and fences: true of all formats but plain text and data."""
        return self.mime_type not in _PLAIN

    def with_remark(self, remark: str) -> Extraction:
        """Itself, with a further remark."""
        return replace(self, remark=" ".join(filter(None, [self.remark, remark])))

    def within(self, limits: Limits) -> Extraction:
        """Itself; raises ExtractionFailed "extraction_failed" when the text is over the limit."""
        # Four bytes are the most that a character takes, so most texts need no second look.
        if sum(len(page.text) for page in self.pages) * 4 > limits.text_bytes:
            size = sum(len(page.text.encode()) for page in self.pages)
            if size > limits.text_bytes:
                raise too_much_text(limits.text_bytes)
        return self


LEAST_MEMORY, OCR_MEMORY = 512 << 20, 1536 << 20
"""Bytes of address space with which a small file, and a page by OCR, is read."""


def shares(total: int) -> tuple[int, int]:
    """What one file and one reader of pixels may take where all readers together have `total` bytes.

    Two scans leave room for the largest file: 2 fifths for that, 3 tenths for each of them.
    """
    return min(total, max(LEAST_MEMORY, total * 2 // 5)), min(total, max(OCR_MEMORY, total * 3 // 10))


class Limits(msgspec.Struct, frozen=True):
    """What the reading of one file may take before it is stopped."""

    wall_seconds: float = 300.0
    """From the start of the reader to its end; of one that reads pages by OCR, from each page to the next."""
    cpu_seconds: float = 20.0
    """Processor time that a PDF of no size may take for its text, and a second more for each `cpu_bytes`.

    Twenty times what sound files take: a small one that takes longer leads its reader in circles.
    """
    cpu_bytes: int = 5_000
    ocr_seconds: float = 4 * 3600.0
    """The pages of one file that are read by OCR, all together."""
    ocr_pages: int = 500
    """How many pages of one file are read by OCR at the most."""
    memory_bytes: int = 2 << 30
    """Address space of a process that reads, at the most, its programs included (about 200 MB)."""
    least_memory_bytes: int = LEAST_MEMORY
    """The same for a file of no size; each byte of a file adds `memory_a_byte`."""
    memory_a_byte: int = 64
    ocr_memory_bytes: int = OCR_MEMORY
    """The same for a process that reads pixels, whatever the size of the file."""
    text_bytes: int = 64 << 20
    """The extracted text of a whole file in UTF-8."""
    sandbox: Sandboxing = "auto"
    """Whether files are read where nothing else can be reached."""

    def memory_for(self, reader: Reader, size: int) -> int:
        """Bytes of address space of a process that reads a file of `size` bytes."""
        if reader.memory_limit == "ocr":
            return self.ocr_memory_bytes
        return min(self.memory_bytes, self.least_memory_bytes + size * self.memory_a_byte)


DEFAULT_LIMITS = Limits()


class TextBudget:
    """The text that a reader may still give; it counts while it reads, before its memory is full."""

    def __init__(self) -> None:
        self._left = DEFAULT_LIMITS.text_bytes

    def spend(self, text: str) -> None:
        """Count a piece of the text. Raises ExtractionFailed: that was too much."""
        self._left -= len(text)
        if self._left < 0:
            raise too_much_text(DEFAULT_LIMITS.text_bytes)


class Reader(msgspec.Struct, frozen=True):
    """A function that reads files, by name: the child imports it, and the parent need not."""

    module: str
    function: str
    takes_context: bool = False
    """Whether it is called with the bytes and a `Context`, or with the bytes alone."""
    cpu_limit: Literal["wall", "size", "ocr"] = "wall"
    """Bounds its processor time: as on the wall; less for a small file; or more, as long as OCR may take."""
    memory_limit: Literal["size", "ocr"] = "size"
    """Bounds its memory: in proportion to the file, or as for OCR, where pixels count and not bytes."""
    aborts_without_memory: bool = False
    """Whether its library ends the process where memory is denied: PDFium, which has no exceptions, does."""

    @property
    def package(self) -> str:
        """The top of its module's name."""
        return self.module.partition(".")[0]


class Task(msgspec.Struct, frozen=True, array_like=True):
    """What a child is to do with the file that is its standard input."""

    reader: Reader
    format: str
    """The name of the file's format."""
    limits: Limits
    parent: int
    """The process that waits for it; without that one there is no use in going on."""
    progress_fd: int
    """The file descriptor for progress."""
    known_fd: int | None = None
    """The file descriptor of the extraction that the reader adds to; None: there is none."""


class PageBegun(NamedTuple):
    """A page that is about to be read by OCR."""

    number: int
    """Of the page, from 1."""
    pages: int
    """That the file has."""
    done: int
    """Pages read before it."""
    wanted: int
    """Pages to be read in all."""

    @property
    def record(self) -> bytes:
        return _RECORD.pack(*self)

    @classmethod
    def of(cls, record: bytes) -> PageBegun:
        return cls(*_RECORD.unpack(record))


class PagesCounted(NamedTuple):
    """How many pages a PDF has, some time before their text is known."""

    pages: int

    @property
    def record(self) -> bytes:
        """What is begun is no page."""
        return PageBegun(0, self.pages, 0, 0).record


Progress: TypeAlias = PagesCounted | PageBegun
"""How far a child is."""


class Context(NamedTuple):
    """What a reader may need beside the bytes of the file."""

    format: str
    limits: Limits
    report_progress: Callable[[Progress], None] = lambda _progress: None
    known: Extraction | None = None
    """What an earlier reader found in the same file."""


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """Why there is no text."""

    code: FailureCode
    message: str

    @classmethod
    def of(cls, failed: ExtractionFailed) -> Failure:
        return cls(failed.code, failed.message)


Report: TypeAlias = Extraction | Failure
