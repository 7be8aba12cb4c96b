"""The data types of extraction: results, limits, and the messages between parent and child.

    parent ── Task, as JSON on the command line ──────────────────────────▶ child
           ◀─ Progress, in records of one size: the pages counted, each page of OCR begun ──
           ◀─ Report, as MessagePack: an Extraction, a Picture or a Failure ─

A `known` extraction, which the child completes, is sent in the format of a report.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from kb_contracts.api.formats import FORMATS, Format
from kb_readers.failures import ExtractionFailed, FailureCode, too_much_text
from kb_readers.sandbox import Sandboxing

Method: TypeAlias = Literal["text_extraction", "image_analysis", "mixed_extraction"]
"""From the file's own text, by OCR, or both on different pages."""

PLAIN_TEXT = "text/plain"
_PLAIN = frozenset(each.mime_type for each in FORMATS.values() if each.is_plain)

_RECORD = struct.Struct("<4I")
RECORD_BYTES = _RECORD.size  # size of a progress record of the child


class Page(msgspec.Struct, frozen=True):
    """The text of one page, without NUL characters; may be empty."""

    number: int | None  # from 1, or None if the format has no pages
    text: str
    notes: str = ""  # text of form fields and annotations; `text` ends with it

    @classmethod
    def of(cls, number: int | None, body: str, notes: str) -> Page:
        """Return a page with notes after its text."""
        return cls(number, "\n\n".join(filter(None, [body, notes])), notes)

    @property
    def body(self) -> str:
        """The text without the notes."""
        return self.text.removesuffix(self.notes).rstrip()


class Extraction(msgspec.Struct, frozen=True, tag="extraction"):
    """The text of one file, page by page, in reading order."""

    pages: list[Page]
    title: str | None  # the declared title of the file, or its first heading of level 1
    method: Method
    mime_type: str  # the MIME type of the file
    remark: str | None = None  # a message for users about content that was not read, and the reason
    encoding: str | None = None  # the label of the encoding, if it was detected
    columns: int | None = None  # the most columns of a table whose separator was detected
    ocr_confidences: dict[int, float] = {}
    """The recognizer's confidence (0 to 1) in the text of each page read by OCR."""
    left_out: list[str] = []  # names of parts that were not read
    is_note: bool = False  # true for the text of a note, which was not read from a file

    @classmethod
    def of_note(cls, text: str) -> Extraction:
        """Wrap the text of a note: agents write Markdown, so its headings count."""
        return cls([Page(None, text)], None, "text_extraction", "text/markdown", is_note=True)

    @classmethod
    def of_text(
        cls,
        fmt: Format,
        text: str,
        title: str | None,
        remark: str | None = None,
        left_out: Sequence[str] = (),
    ) -> Extraction:
        """Wrap the text of a file without pages."""
        method: Method = "text_extraction"
        return cls([Page(None, text)], title, method, fmt.mime_type, remark, left_out=list(left_out))

    @property
    def page_count(self) -> int | None:
        """The number of pages, or None if the format has no pages."""
        return max((page.number for page in self.pages if page.number is not None), default=None)

    @property
    def is_markdown(self) -> bool:
        """True if the text has Markdown headings and fences: all formats except plain text and data."""
        return self.mime_type not in _PLAIN

    def with_remark(self, remark: str) -> Extraction:
        return replace(self, remark=" ".join(filter(None, [self.remark, remark])))

    def within(self, limits: Limits) -> Extraction:
        """Return self. Raises ExtractionFailed "extraction_failed" if the text is over the limit."""
        # A character takes at most four bytes, so most texts need no encoding.
        if sum(len(page.text) for page in self.pages) * 4 > limits.text_bytes:
            size = sum(len(page.text.encode()) for page in self.pages)
            if size > limits.text_bytes:
                raise too_much_text(limits.text_bytes)
        return self


class Picture(msgspec.Struct, frozen=True, tag="picture"):
    """A page of a file, or the picture in it, encoded here: without metadata and active content."""

    content: bytes
    media_type: Literal["image/png", "image/jpeg"] = "image/png"


LEAST_MEMORY, OCR_MEMORY = 512 << 20, 1536 << 20
"""Minimum address space for reading a small file, and for OCR of a page, in bytes."""


def shares(total: int) -> tuple[int, int]:
    """Return the memory limits of one file and of one OCR reader, for `total` bytes of all readers.

    Two scans leave room for the largest file: two fifths for the file, three tenths for each scan.
    """
    return min(total, max(LEAST_MEMORY, total * 2 // 5)), min(total, max(OCR_MEMORY, total * 3 // 10))


class Limits(msgspec.Struct, frozen=True):
    """Limits for the reading of one file."""

    wall_seconds: float = 300.0
    """From the start of the reader to its end; with OCR, from each page to the next."""
    cpu_seconds: float = 20.0
    """Processor time for formats whose structures may be circular, as PDF, in seconds, plus a second per
    `cpu_bytes` of the file.

    Twenty times the need of sound files: a small file that takes longer leads its reader in circles.
    """
    cpu_bytes: int = 5_000
    ocr_seconds: float = 4 * 3600.0  # time for all OCR pages of one file
    ocr_pages: int = 500  # maximum number of OCR pages of one file
    memory_bytes: int = 2 << 30  # maximum address space of a reader, including its programs (about 200 MB)
    least_memory_bytes: int = LEAST_MEMORY
    """Address space of a reader for an empty file; each byte of the file adds `memory_a_byte`."""
    memory_a_byte: int = 64
    ocr_memory_bytes: int = OCR_MEMORY  # address space of an OCR reader, independent of the size of the file
    text_bytes: int = 64 << 20  # maximum extracted text of a whole file, in bytes of UTF-8
    sandbox: Sandboxing = "auto"  # use of the sandbox

    def memory_for(self, reader: Reader, size: int) -> int:
        """Return the address space, in bytes, of a process that reads a file of `size` bytes."""
        if reader.memory_limit == "ocr":
            return self.ocr_memory_bytes
        return min(self.memory_bytes, self.least_memory_bytes + size * self.memory_a_byte)


DEFAULT_LIMITS = Limits()


class TextBudget:
    """Remaining text allowance of a reader, counted while reading, before the memory is full."""

    def __init__(self) -> None:
        self._left = DEFAULT_LIMITS.text_bytes

    def spend(self, text: str) -> None:
        """Count a piece of text. Raises ExtractionFailed if the allowance is exceeded."""
        self._left -= len(text)
        if self._left < 0:
            raise too_much_text(DEFAULT_LIMITS.text_bytes)


class Reader(msgspec.Struct, frozen=True):
    """A reader function by name: the child imports it, the parent does not."""

    module: str
    function: str
    takes_context: bool = False
    """If true, the function is called with the bytes and a `Context`, otherwise with the bytes alone."""
    cpu_limit: Literal["wall", "size", "ocr"] = "wall"
    """Processor time limit: as wall time; less for a small file; or more, as long as OCR may take."""
    memory_limit: Literal["size", "ocr"] = "size"
    """Memory limit: in proportion to the file, or that of OCR, where pixels count instead of bytes."""
    aborts_without_memory: bool = False
    """True if its library aborts the process when memory is denied, as PDFium, which has no exceptions."""

    @property
    def package(self) -> str:
        """The top-level package of the module."""
        return self.module.partition(".")[0]


class Task(msgspec.Struct, frozen=True, array_like=True):
    """The task of a child; the file is its standard input."""

    reader: Reader
    format: str  # the name of the file's format
    limits: Limits
    parent: int  # process id of the parent; the child exits without it
    progress_fd: int  # the file descriptor for progress
    known_fd: int | None = None  # the file descriptor of the extraction to complete, or None


class PageBegun(NamedTuple):
    """A page whose OCR begins."""

    number: int  # page number, from 1
    pages: int  # number of pages of the file
    done: int  # OCR pages finished before
    wanted: int  # OCR pages in total

    @property
    def record(self) -> bytes:
        return _RECORD.pack(*self)

    @classmethod
    def of(cls, record: bytes) -> PageBegun:
        return cls(*_RECORD.unpack(record))


class PagesCounted(NamedTuple):
    """The number of pages of a PDF, reported before their text is read."""

    pages: int

    @property
    def record(self) -> bytes:
        """Encoded as a begun page with number 0."""
        return PageBegun(0, self.pages, 0, 0).record


Progress: TypeAlias = PagesCounted | PageBegun  # progress of a child


class Context(NamedTuple):
    """Input of a reader beside the bytes of the file."""

    format: str
    limits: Limits
    report_progress: Callable[[Progress], None] = lambda _progress: None
    known: Extraction | None = None  # the result of an earlier reader of the same file


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """The reason why there is no text."""

    code: FailureCode
    message: str

    @classmethod
    def of(cls, failed: ExtractionFailed) -> Failure:
        return cls(failed.code, failed.message)


Report: TypeAlias = Extraction | Picture | Failure
