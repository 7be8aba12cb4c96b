"""The readers by format. A new one needs a line in `kb_contracts.api.formats`, and a module here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import IO

from msgspec.structs import replace

from kb_contracts.api import formats
from kb_contracts.api.formats import Format
from kb_readers.child import OnProgress, read_in_child
from kb_readers.failures import ExtractionFailed, too_much_text
from kb_readers.grammars import GRAMMARS
from kb_readers.memory import MemoryBudget
from kb_readers.model import DEFAULT_LIMITS, Extraction, Limits, Page, Picture, Progress, Reader
from kb_readers.text import in_known_encoding, read_text

_DECODED_HERE = frozenset(["md", *(each.name for each in formats.FORMATS.values() if each.is_plain)])
_SLOW = frozenset(["rtf", "doc", "ppt", "xls", "msg"])
"""Formats with a lower limit of processor time for small files."""
_OTHERS = {
    "pdf": Reader(
        "kb_readers.pdf", "read_pdf", takes_context=True, cpu_limit="size", aborts_without_memory=True
    ),
    "csv": Reader("kb_readers.delimited", "read_delimited"),
    "vtt": Reader("kb_readers.subtitles", "read_subtitles"),
    "ipynb": Reader("kb_readers.notebook", "read_notebook"),
    "xml": Reader("kb_readers.xml_text", "read_xml"),
    "eml": Reader("kb_readers.mail", "read_mail"),
    **{
        name: Reader(f"kb_readers.{module}", f"read_{module.removesuffix('s')}", takes_context=True)
        for module, names in (
            ("opendocument", ("odt", "ods", "odp")),
            ("outlines", ("adoc", "org", "rst", "tex")),
            ("code", GRAMMARS),
        )
        for name in names
    },
}
READERS: Mapping[str, Reader] = MappingProxyType(
    {
        name: _OTHERS.get(name)
        or Reader(f"kb_readers.{name}", f"read_{name}", cpu_limit="size" if name in _SLOW else "wall")
        for name, fmt in formats.FORMATS.items()
        if name in _OTHERS or not (name in _DECODED_HERE or fmt.takes_ocr)
    }
)
"""By format name: `read_NAME` in a module NAME, unless `_OTHERS` has another; None for pictures."""
DRAWN = {
    "pdf": Reader(
        "kb_readers.pdf_picture", "draw_pdf", takes_context=True, cpu_limit="size", aborts_without_memory=True
    )
}
"""Readers that return a picture, by format name."""
_PACKAGES = {
    "pdf": "pypdfium2",
    **dict.fromkeys(["doc", "msg", "ppt"], "olefile"),
    "xls": "xlrd",
    **{name: package for name, (package, _) in GRAMMARS.items()},
}


def format_of(filename: str, content_type: str = "") -> Format:
    """Like `formats.format_of`, but raises ExtractionFailed "unsupported_format" with the formats."""
    try:
        return formats.format_of(filename, content_type)
    except formats.UnsupportedFormat as error:
        raise ExtractionFailed("unsupported_format", error.message) from error


def require_reader(fmt: Format) -> None:
    """Raise ExtractionFailed "unsupported_format" if the package for this format is not installed."""
    package = _PACKAGES.get(fmt.name)
    if package is not None and find_spec(package) is None:
        raise ExtractionFailed(
            "unsupported_format",
            f"{fmt.label} files are read by the package {package}, which is not installed here. "
            f"Install it with: pip install {package}",
        )


async def ignore_progress(_progress: Progress) -> None:
    """Discard progress."""


async def read_file(
    source: IO[bytes],
    fmt: Format,
    limits: Limits = DEFAULT_LIMITS,
    on_progress: OnProgress = ignore_progress,
    *,
    memory: MemoryBudget | None = None,
) -> Extraction:
    """Return the text of an open file, read as `fmt`.

    Text, Markdown and data are decoded in a thread. Other formats are read in a child, which starts once
    `memory` has room for it, and is killed with its process group when it exceeds a limit or the awaiting
    task is cancelled. The encoding of a text that declares none is detected.

    Raises ExtractionFailed; KeyError for a format without a reader here.
    """
    if fmt.name in _DECODED_HERE:
        data = await asyncio.to_thread(source.read, limits.text_bytes + 1)
        if len(data) > limits.text_bytes:
            raise too_much_text(limits.text_bytes)
        data, detected = await asyncio.to_thread(in_known_encoding, data, fmt)
        extraction = (await asyncio.to_thread(read_text, data, fmt.mime_type)).within(limits)
        return extraction if detected is None else _detected(extraction, detected)
    require_reader(fmt)
    reading = partial(read_in_child, fmt=fmt, reader=READERS[fmt.name], limits=limits, memory=memory)
    try:
        return await reading(source, on_progress=on_progress)
    except ExtractionFailed as failed:
        if not fmt.is_text or failed.code != "undecodable_text":
            raise
        # Not in the child: one of the detectors needs a temporary file.
        source.seek(0)
        data = await asyncio.to_thread(source.read, limits.text_bytes + 1)
        if len(data) > limits.text_bytes:
            raise
        data, detected = await asyncio.to_thread(in_known_encoding, data, fmt)
        if detected is None:
            raise
    with TemporaryFile() as text:
        await asyncio.to_thread(text.write, data)
        text.seek(0)
        return _detected(await reading(text, on_progress=on_progress), detected)


def _detected(extraction: Extraction, detected: str) -> Extraction:
    """Return the extraction of a text whose encoding was detected."""
    remark = f"It does not declare its encoding; it was read as {detected}."
    return replace(extraction.with_remark(remark), encoding=detected)


def check_drawn(fmt: Format, drawn: Mapping[str, Reader] = DRAWN) -> None:
    """Raise ExtractionFailed "unsupported_format" for a format that is not in `drawn`."""
    if fmt.name not in drawn:
        raise ExtractionFailed("unsupported_format", f"{fmt.label} files are not shown as pictures.")


async def draw_file(
    source: IO[bytes],
    fmt: Format,
    page: Page,
    limits: Limits = DEFAULT_LIMITS,
    *,
    memory: MemoryBudget | None = None,
    drawn: Mapping[str, Reader] = DRAWN,
) -> Picture:
    """Return a picture of a page of an open file, made in a child; the text in `page` is marked on it.

    Raises ExtractionFailed, "unsupported_format" for a format that is not in `drawn`.
    """
    check_drawn(fmt, drawn)
    require_reader(fmt)
    known = Extraction([page], None, "text_extraction", fmt.mime_type)
    return await read_in_child(
        source, fmt, drawn[fmt.name], limits, ignore_progress, known, memory=memory, result=Picture
    )
