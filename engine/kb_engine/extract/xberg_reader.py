"""xberg, asked for text and nothing else: no cache, no OCR, no network, one thread."""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

import xberg

from kb_engine.extract.failures import ExtractionFailed, damaged, locked, unsafe
from kb_engine.extract.headings import given_title

_LONGEST_REASON = 200

# Sizes are bounded in bytes, by xberg and by the process that it runs in. A ratio says little: a long
# table of equal rows is packed a hundred times smaller and is no bomb.
_SECURITY = xberg.SecurityLimits(max_compression_ratio=1100, max_table_cells=1_000_000)


def _config(output_format: str, *, tables: bool) -> xberg.ExtractionConfig:
    return xberg.ExtractionConfig(
        use_cache=False,
        disable_ocr=True,
        output_format=output_format,
        pages=xberg.PageConfig(extract_pages=True),
        pdf_options=xberg.PdfConfig(extract_tables=tables),
        # Nothing that a page shows is left out, not even what every page repeats.
        content_filter=xberg.ContentFilterConfig(
            include_headers=True, include_footers=True, include_footnotes=True, strip_repeating_text=False
        ),
        security_limits=_SECURITY,
        concurrency=xberg.ConcurrencyConfig(max_threads=1),
        max_archive_depth=0,
        extraction_timeout_secs=None,
    )


_MARKDOWN = _config("markdown", tables=True)
_PLAIN = _config("plain", tables=False)

# xberg escapes what Markdown could take for markup. A reader and a search want the character alone, but
# at the start of a line the escape stays where the bare character would make a heading or a fence.
# What stands in code was never escaped and is stepped over.
_ESCAPED = re.compile(
    r"^(?P<fence>`{3,}|~{3,})[^\n]*\n.*?^(?P=fence)[ \t]*$"
    r"|`[^`\n]+`"
    r"|^ {0,3}\\(?:[#`~=]|-(?=-))"
    r"|\\(?P<bare>[!-/:-@\[-`{-~])",
    re.MULTILINE | re.DOTALL,
)


class Reading(NamedTuple):
    """What xberg found in a file, as Markdown without needless escapes."""

    pages: list[str]
    """In order; what has no pages is one."""
    title: str | None


def read_markdown(data: bytes, mime_type: str, label: str) -> Reading:
    """Read a file of a known kind; `label` is the kind's name for people. Raises ExtractionFailed."""
    document = _read(data, mime_type, label, _MARKDOWN)
    pages = [page.content for page in document.pages or []] or [document.content]
    return Reading([_clean(page) for page in pages], given_title(document.metadata.title))


def read_plain_pages(data: bytes, mime_type: str, label: str) -> list[str]:
    """The words of each page as the file has them, in lines whose order may be wrong."""
    return [page.content for page in _read(data, mime_type, label, _PLAIN).pages or []]


def _read(data: bytes, mime_type: str, label: str, config: xberg.ExtractionConfig) -> xberg.ExtractedDocument:
    given = xberg.ExtractInput(kind="bytes", bytes=data, mime_type=mime_type)
    try:
        result = asyncio.run(_extract(given, config))
    except (RuntimeError, xberg.XbergError) as error:
        raise _failure(str(error), label) from error
    if not result.results:
        raise _failure("; ".join(each.message for each in result.errors), label)
    return result.results[0]


async def _extract(given: xberg.ExtractInput, config: xberg.ExtractionConfig) -> xberg.ExtractionResult:
    # Made inside a coroutine: xberg's future wants the running loop when it is made.
    return await xberg.extract(given, config)


def _clean(markdown: str) -> str:
    return _ESCAPED.sub(lambda found: found["bare"] or found[0], markdown).replace("\0", "").strip("\n")


def _failure(reason: str, label: str) -> ExtractionFailed:
    lower = reason.lower()
    if "password" in lower or "encrypted" in lower:
        return locked(label)
    said = " ".join(reason.removeprefix("Parsing error: ").split())[:_LONGEST_REASON]
    if "security limit" in lower:
        return unsafe(label, said)
    if "parsing" in lower:
        return damaged(label, said)
    return ExtractionFailed("extraction_failed", f"The {label} file could not be read ({said}).")
