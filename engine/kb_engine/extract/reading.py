"""How a file is read, from its format to its text.

text, Markdown ─▶ decoded here
PDF            ─▶ its text, in a child ─▶ pages with next to none ─▶ by OCR, in another child
PDF, forced    ─▶ all pages by OCR, in a child
other formats  ─▶ in a child
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path

from msgspec.structs import replace

from kb_config.installing import install_command
from kb_engine.extract.child import OnPage, read_in_child
from kb_engine.extract.failures import ExtractionFailed, no_ocr, too_much_text
from kb_engine.extract.formats import Format
from kb_engine.extract.listing import pages_listed
from kb_engine.extract.model import DEFAULT_LIMITS, Extraction, Limits
from kb_engine.extract.report import SCANS, Reading
from kb_engine.extract.text import has_few_letters, read_text

_IN_PROCESS = frozenset(["txt", "md"])
_PDF = "pdf"
_OCR_PACKAGES = ("pypdfium2", "rapidocr")


async def no_page(_page: Reading) -> None:
    """The `OnPage` of work that nobody watches."""


async def extract(
    path: Path,
    fmt: Format,
    *,
    force_ocr: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    on_page: OnPage = no_page,
) -> Extraction:
    """The text of the file at `path`, read as `fmt` whatever its name.

    Text and Markdown are decoded in a thread; every other format is read in a child process, which is killed
    with its whole group when it takes too long or when the awaiting task is cancelled. With `force_ocr` the
    text that a PDF holds is not asked for; other formats are read as always.

    Raises ExtractionFailed; OSError when the file cannot be opened.
    """
    if fmt.name in _IN_PROCESS:
        return await asyncio.to_thread(_read_here, path, fmt, limits)
    if fmt.name != _PDF:
        return await read_in_child(path, fmt.name, limits, on_page)
    if not force_ocr:
        return await _read_pdf(path, limits, on_page)
    if (package := _missing_package()) is not None:
        raise no_ocr(package)
    return await read_in_child(path, SCANS, limits, on_page)


def _read_here(path: Path, fmt: Format, limits: Limits) -> Extraction:
    if path.stat().st_size > limits.text_bytes:
        raise too_much_text(limits.text_bytes)
    return read_text(path.read_bytes(), fmt.mime_type).within(limits)


async def _read_pdf(path: Path, limits: Limits, on_page: OnPage) -> Extraction:
    known = await read_in_child(path, _PDF, limits, on_page)
    if not any(has_few_letters(page.text) for page in known.pages):
        return known
    if _missing_package() is not None:
        return _without_ocr(known)
    try:
        return await read_in_child(path, SCANS, limits, on_page, known)
    except ExtractionFailed as failed:
        return _in_spite_of(failed, known)


def _missing_package() -> str | None:
    """The first package of the extra `ocr` that is not installed."""
    return next((name for name in _OCR_PACKAGES if find_spec(name) is None), None)


def _without_ocr(known: Extraction) -> Extraction:
    silent = _silent(known)
    if not silent:
        return known
    where = (
        f"its pages ({len(silent):,})" if len(silent) == len(known.pages) else pages_listed(silent).lower()
    )
    return replace(
        known,
        remark=f"No text was found on {where}. Scanned pages are read by OCR, which this engine lacks: "
        f"{install_command('ocr')}, remove this document and add the file again.",
    )


def _in_spite_of(failed: ExtractionFailed, known: Extraction) -> Extraction:
    """What is known, where that is half of the pages or more: a few figures are not worth the whole text."""
    silent = _silent(known)
    if 2 * len(silent) > len(known.pages):
        raise failed
    if not silent:
        return known
    return replace(known, remark=f"{pages_listed(silent)} could not be read by OCR. {failed.message}")


def _silent(known: Extraction) -> list[int]:
    return [number for number, page in enumerate(known.pages, 1) if not page.text.strip()]
