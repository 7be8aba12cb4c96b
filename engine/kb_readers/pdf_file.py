"""A PDF, checked and opened by PDFium.

PDFium comes in the package pypdfium2 (Apache-2.0 or BSD-3-Clause; PDFium is BSD-3-Clause). It is C++ and
reads hostile files: use it in a process that may be killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pypdfium2

from kb_readers.failures import ExtractionFailed, damaged, locked
from kb_readers.headings import given_title

_LABEL = "PDF"
_LOCKED = (4, 5)  # FPDF_ERR_PASSWORD, FPDF_ERR_SECURITY
# Where readers look for the marks of beginning and end.
_HEAD_BYTES = 1024
_TAIL_BYTES = 2048
_PADDING = b"\0 \t\r\n"
_OBJECT_OR_KIDS = re.compile(rb"(\d{1,10})\s+\d{1,5}\s+obj\b|/Kids\s*\[([^\]]*)\]")
_REFERENCE = re.compile(rb"(\d{1,10})\s+\d{1,5}\s+R\b")


@contextmanager
def open_pdf(data: bytes) -> Iterator[Any]:
    """A `pypdfium2.PdfDocument`, which has no types.

    Raises ExtractionFailed: no PDF, cut off, damaged or locked.
    """
    _check_ends(data)
    check_page_tree(data)
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        raise (locked(_LABEL) if error.err_code in _LOCKED else damaged(_LABEL, str(error))) from None
    with closing(document):
        yield document


def declared_title(document: Any) -> str | None:
    """What the file says its title is."""
    try:
        return given_title(document.get_metadata_value("Title"))
    except UnicodeDecodeError:
        return None


def _check_ends(data: bytes) -> None:
    """Raise ExtractionFailed "file_corrupt" for what is no PDF, or the beginning of one."""
    if b"%PDF-" not in data[:_HEAD_BYTES]:
        raise ExtractionFailed("file_corrupt", "The file is not a PDF, although its name says so.")
    # PDFium repairs a file that was cut off as well as it can, and says nothing of what is lost.
    if b"%%EOF" not in data[-_TAIL_BYTES:] and b"%%EOF" not in data.rstrip(_PADDING)[-_TAIL_BYTES:]:
        raise ExtractionFailed(
            "file_corrupt",
            "The PDF is cut off: its end is missing. Copy or download it again and try once more.",
        )


def check_page_tree(data: bytes) -> None:
    """Raise ExtractionFailed "file_corrupt" where a node of the page tree is its own ancestor.

    PDFium would read the same pages as often as the file claims to have any. Only nodes that stand in the
    file uncompressed are seen; of the others a reader has `Limits.cpu_seconds`.
    """
    kids = _kids(data)
    open_nodes: set[int] = set()
    sound: set[int] = set()
    for root in kids:
        path = [(root, iter(kids[root]))]
        open_nodes.add(root)
        while path:
            node, left = path[-1]
            child = next((child for child in left if child in kids and child not in sound), None)
            if child is None:
                path.pop()
                open_nodes.discard(node)
                sound.add(node)
            elif child in open_nodes:
                raise damaged(_LABEL, f"object {child} of its page tree holds itself")
            else:
                open_nodes.add(child)
                path.append((child, iter(kids[child])))


def _kids(data: bytes) -> dict[int, list[int]]:
    """The children of each node by its number; of a node that was changed, those of its last version."""
    kids: dict[int, list[int]] = {}
    number = 0
    for found in _OBJECT_OR_KIDS.finditer(data):
        if found[1] is None:
            kids[number] = [int(reference) for reference in _REFERENCE.findall(found[2])]
        else:
            number = int(found[1])
            kids.pop(number, None)
    return kids
