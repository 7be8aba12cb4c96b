"""What parent and child say to each other.

A task goes as JSON on the command line and a report comes back as MessagePack; what a child should start from
is a report too. It tells how many pages a PDF has once it knows, and of each page that it reads by OCR as it
begins, in records of one size.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

import msgspec

from kb_engine.extract.failures import ExtractionFailed, FailureCode
from kb_engine.extract.model import Extraction, Limits


class Task(msgspec.Struct, frozen=True, array_like=True):
    """What a child is to do with the file that is its standard input."""

    reader: str
    """The name of a format, or `SCANS`."""
    limits: Limits
    parent: int
    """The process that waits for it; without that one there is no use in going on."""
    told: int
    """The file descriptor for what is told page by page."""
    known: int | None = None
    """The file descriptor of the extraction that a reader of scans adds to; None: there is none."""


SCANS = "scans"
"""The reader that renders the pages of a PDF and reads them by OCR."""


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


Reading: TypeAlias = PagesCounted | PageBegun
"""How far a child is."""

_RECORD = struct.Struct("<4I")
RECORD_BYTES = _RECORD.size


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """Why there is no text."""

    code: FailureCode
    message: str

    @classmethod
    def of(cls, failed: ExtractionFailed) -> Failure:
        """The exception as it travels."""
        return cls(failed.code, failed.message)


Report: TypeAlias = Extraction | Failure
