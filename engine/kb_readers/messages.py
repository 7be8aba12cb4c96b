"""What parent and child send each other.

A task goes as JSON on the command line and a report comes back as MessagePack; an extraction that a child
starts from is sent as a report is. While it works, the child sends its progress in records of one size: how
many pages a PDF has once it knows, and each page that it reads by OCR as it begins.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from kb_readers.failures import ExtractionFailed, FailureCode
from kb_readers.model import Extraction, Limits


class Reader(msgspec.Struct, frozen=True):
    """A function that reads files, by name: the child imports it, and the parent need not."""

    module: str
    function: str
    takes_context: bool = False
    """Whether it is called with the bytes and a `Context`, or with the bytes alone."""
    cpu_limit: Literal["wall", "size", "ocr"] = "wall"
    """Bounds its processor time: as on the wall; less for a small file; or more, as long as OCR may take."""
    aborts_without_memory: bool = False
    """Whether its library ends the process where memory is denied: PDFium, which has no exceptions, does."""


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
        """As it travels."""
        return _RECORD.pack(*self)

    @classmethod
    def of(cls, record: bytes) -> PageBegun:
        """What has travelled."""
        return cls(*_RECORD.unpack(record))


class PagesCounted(NamedTuple):
    """How many pages a PDF has, some time before their text is known."""

    pages: int

    @property
    def record(self) -> bytes:
        """As it travels: what is begun is no page."""
        return PageBegun(0, self.pages, 0, 0).record


Progress: TypeAlias = PagesCounted | PageBegun
"""How far a child is."""

_RECORD = struct.Struct("<4I")
RECORD_BYTES = _RECORD.size


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
        """The exception as it travels."""
        return cls(failed.code, failed.message)


Report: TypeAlias = Extraction | Failure
