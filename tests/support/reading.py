"""Reading of files as engine and simulator do it."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from kb_contracts.api.formats import Format
from kb_readers.failures import ExtractionFailed
from kb_readers.model import DEFAULT_LIMITS, Context, Extraction, Limits
from kb_readers.readers import read_file

Read = Callable[[bytes], Extraction]
"""A reader of one format."""


async def read_path(path: Path, fmt: Format, limits: Limits = DEFAULT_LIMITS) -> Extraction:
    """The text of a file; it is read in a child process unless it is plain text."""
    with path.open("rb") as source:
        return await read_file(source, fmt, limits)


def reader_of(read: Callable[[bytes, Context], Extraction], name: str) -> Read:
    """A reader of several formats as the reader of one."""
    return lambda data: read(data, Context(name, DEFAULT_LIMITS))


def only_text(read: Read, data: bytes) -> str:
    (page,) = read(data).pages
    assert page.number is None
    return page.text


def refusal(read: Read, data: bytes, code: str | None = None, words: str = "") -> ExtractionFailed:
    """The error of reading these bytes; its message must have `words` and end with a full sentence."""
    with pytest.raises(ExtractionFailed) as failed:
        read(data)
    assert code in {None, failed.value.code}, failed.value
    assert words in failed.value.message
    assert failed.value.message.endswith(".")
    return failed.value


def saved(document: Any) -> bytes:
    """The bytes of a document that saves itself to a file."""
    file = BytesIO()
    document.save(file)
    return file.getvalue()
