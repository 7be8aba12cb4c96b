"""Extraction of text from a file, by its format.

text, Markdown ─▶ decoded in a thread
PDF            ─▶ its text layer, in a child ─▶ pages with almost none ─▶ by OCR, in another child
PDF, forced    ─▶ all pages by OCR, in a child
other formats  ─▶ in a child
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import IO

from kb_config.installing import install_command
from kb_contracts.api.formats import Format
from kb_readers.child import OnProgress, read_in_child
from kb_readers.failures import ExtractionFailed
from kb_readers.memory import MemoryBudget
from kb_readers.model import DEFAULT_LIMITS, Extraction, Limits, Reader
from kb_readers.readers import DRAWN, ignore_progress, read_file
from kb_readers.remarks import pages_listed
from kb_readers.text import has_few_letters

_PICTURES = Reader("kb_engine.extract.pictures", "read_picture", takes_context=True, memory_limit="ocr")
_SCANS = Reader(
    "kb_engine.extract.scans",
    "read_scans",
    takes_context=True,
    cpu_limit="ocr",
    memory_limit="ocr",
    aborts_without_memory=True,
)
_DRAWN_PICTURE = Reader("kb_engine.extract.pictures", "draw_picture", takes_context=True, memory_limit="ocr")
DRAWN_HERE = {**DRAWN, "jpg": _DRAWN_PICTURE, "png": _DRAWN_PICTURE}
"""Readers that return a picture, by format name."""
_OCR_PACKAGE = "rapidocr"


async def extract(
    path: Path,
    fmt: Format,
    *,
    force_ocr: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    on_progress: OnProgress = ignore_progress,
    memory: MemoryBudget | None = None,
) -> Extraction:
    """Return the text of the file at `path`, read as `fmt` regardless of its name.

    With `force_ocr` the text layer of a PDF is ignored; other formats are not affected. A child process
    starts once `memory` has room for it, and is killed with its process group when it exceeds a limit or the
    awaiting task is cancelled.

    Raises ExtractionFailed; OSError when the file cannot be opened.
    """
    with path.open("rb") as source:
        match fmt.name:
            case "jpg" | "png" | "pdf" if (fmt.name != "pdf" or force_ocr) and not _has_ocr():
                raise no_ocr(_OCR_PACKAGE)
            case "jpg" | "png":
                return await read_in_child(source, fmt, _PICTURES, limits, on_progress, memory=memory)
            case "pdf" if force_ocr:
                return await read_in_child(source, fmt, _SCANS, limits, on_progress, memory=memory)
            case "pdf":
                return await _read_pdf(source, fmt, limits, on_progress, memory)
            case _:
                return await read_file(source, fmt, limits, on_progress, memory=memory)


async def _read_pdf(
    source: IO[bytes], fmt: Format, limits: Limits, on_progress: OnProgress, memory: MemoryBudget | None
) -> Extraction:
    known = await read_file(source, fmt, limits, on_progress, memory=memory)
    if not any(has_few_letters(page.body) for page in known.pages):
        return known
    if not _has_ocr():
        silent = _silent(known)
        if not silent:
            return known
        where = pages_listed(silent).lower()
        if len(silent) == len(known.pages):
            where = f"its pages ({len(silent):,})"
        return known.with_remark(
            f"No text was found on {where}. Scanned pages are read by OCR, which this engine lacks: "
            f"{install_command('ocr')}, remove this document and add the file again."
        )
    source.seek(0)
    try:
        return await read_in_child(source, fmt, _SCANS, limits, on_progress, known, memory=memory)
    except ExtractionFailed as failed:
        # Keep the text layer if it covers at least half of the pages: failed OCR of a few must not lose it.
        silent = _silent(known)
        if 2 * len(silent) > len(known.pages):
            raise
        if not silent:
            return known
        return known.with_remark(f"{pages_listed(silent)} could not be read by OCR. {failed.message}")


def no_ocr(package: str) -> ExtractionFailed:
    """The error if the extra `ocr` is not installed."""
    return ExtractionFailed(
        "ocr_failed",
        f"This engine cannot read pictures: the package {package} is missing. "
        f"Install it with {install_command('ocr')}, then send the file again.",
    )


def _has_ocr() -> bool:
    return find_spec(_OCR_PACKAGE) is not None


def _silent(known: Extraction) -> list[int]:
    return [number for number, page in enumerate(known.pages, 1) if not page.body.strip()]
