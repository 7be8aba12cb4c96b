"""What extraction gives, and how it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kb_simulator.engine.chunking import Page

METHOD = "text_extraction"
"""The only method there is: the simulator reads text and looks at no picture."""

MAX_TEXT_CHARS = 20_000_000
"""Code points of one file's text at the most, whatever it unpacks to."""


# A locked Office file is no ZIP: the ZIP lies encrypted in an older container, under this name.
_OLE = b"\xd0\xcf\x11\xe0"
_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of one file, page by page. `headings`: whether lines with `#` are headings."""

    pages: Sequence[Page]
    title: str | None = None
    headings: bool = True

    @property
    def page_count(self) -> int | None:
        """How many pages the file has, None where its format has none."""
        return max((page.number for page in self.pages if page.number is not None), default=None)


class ExtractionFailed(Exception):
    """A file that gives no text. `code` is one of the contract's; the message says what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def check_lock(data: bytes, label: str) -> None:
    """Raise ExtractionFailed: `file_encrypted`, where an Office file is locked with a password."""
    if data.startswith(_OLE) and _ENCRYPTED_PACKAGE in data:
        raise locked(label)


def locked(label: str) -> ExtractionFailed:
    """The failure of a file that opens with a password only."""
    return ExtractionFailed(
        "file_encrypted",
        f"The {label} file is locked with a password. Save it without one and send it again.",
    )


def too_much_text() -> ExtractionFailed:
    """The failure of a file that unpacks to more than `MAX_TEXT_CHARS`."""
    return ExtractionFailed(
        "extraction_memory", f"The file unpacks to more than {MAX_TEXT_CHARS:,} bytes of text. Split it."
    )
