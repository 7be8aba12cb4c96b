"""How the reading of a file fails: one exception with a stable code, and the message of each case."""

from __future__ import annotations

from typing import Literal, TypeAlias

FailureCode: TypeAlias = Literal[
    "unsupported_format",
    "undecodable_text",
    "file_corrupt",
    "file_encrypted",
    "extraction_failed",
    "extraction_timeout",
    "extraction_memory",
    "ocr_failed",
]

OLE = b"\xd0\xcf\x11\xe0"
"""How an Office file begins that is from before 2007, or locked with a password."""

_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")  # in the directory of one that is locked

_LONGEST_REASON = 200


class ExtractionFailed(Exception):
    """One file gave no text, through no fault of the engine. The message is for people."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.code: FailureCode = code
        self.message = message


def too_much_text(most_bytes: int) -> ExtractionFailed:
    """The text is over the limit."""
    return ExtractionFailed(
        "extraction_failed",
        f"The file holds more than {most_bytes:,} bytes of text. Split it and add the parts.",
    )


def too_much_memory(most_bytes: int) -> ExtractionFailed:
    """The reader needed more memory than it may have."""
    return ExtractionFailed(
        "extraction_memory",
        f"Reading the file took more than {most_bytes >> 20:,} MiB of memory. "
        "Split it, or save it without its largest pictures, and try again.",
    )


def too_long(most_seconds: float) -> ExtractionFailed:
    """The reader did not end in time."""
    return ExtractionFailed(
        "extraction_timeout",
        f"Reading the file took more than {most_seconds:g} seconds. Split it and add the parts.",
    )


def too_much_work() -> ExtractionFailed:
    """The reader computed for longer than any sound file of that size takes."""
    return ExtractionFailed(
        "extraction_timeout",
        "Reading the file takes far more work than its size accounts for: what is in it may refer to itself. "
        "Open it in the program that made it, save it again and try once more.",
    )


def page_too_long(page: int, most_seconds: float) -> ExtractionFailed:
    """One page was not read by OCR in time."""
    return ExtractionFailed(
        "extraction_timeout",
        f"Page {page:,} was not read by OCR within {most_seconds:g} seconds. "
        "Take it out of the file and add the rest.",
    )


def pages_too_long(page: int, pages: int, most_seconds: float) -> ExtractionFailed:
    """All pages together were not read by OCR in time."""
    return ExtractionFailed(
        "extraction_timeout",
        f"Reading the pages by OCR took more than {most_seconds:g} seconds: it came to page {page:,} of "
        f"{pages:,}. Split the file and add the parts.",
    )


def not_installed(label: str, package: str) -> ExtractionFailed:
    """The format is known, and what reads it is not there."""
    return ExtractionFailed(
        "unsupported_format",
        f"{label} files are read by the package {package}, which is not installed here. "
        f"Install it with: pip install {package}",
    )


def not_loaded(package: str) -> ExtractionFailed:
    """A package that is installed, or should be, cannot be imported."""
    return ExtractionFailed(
        "extraction_failed",
        f"The package {package} cannot be loaded. Install it again, then send the file again.",
    )


def unsafe(label: str, reason: str) -> ExtractionFailed:
    """What is packed in the file is larger, or deeper, than any document that is read."""
    return ExtractionFailed(
        "extraction_failed",
        f"The {label} file holds more than is safe to read ({reason}). Split it and add the parts.",
    )


def locked(label: str) -> ExtractionFailed:
    """The file only opens with a password."""
    return ExtractionFailed(
        "file_encrypted",
        f"The {label} file is locked with a password. Save it without one and send it again.",
    )


def old_or_locked(data: bytes, label: str) -> ExtractionFailed:
    """The file begins as `OLE` does."""
    if _ENCRYPTED_PACKAGE in data:
        return locked(label)
    return ExtractionFailed(
        "file_corrupt", f"The file is in the format of before 2007. Save it as {label} and send it again."
    )


def damaged(label: str, reason: str) -> ExtractionFailed:
    """The file is not what its name says, or not all of it; of the reason as much as a person reads."""
    return ExtractionFailed(
        "file_corrupt",
        f"The {label} file cannot be read: it is damaged or cut off ({reason[:_LONGEST_REASON]}). "
        "Open it in the program that made it, save it again and try once more.",
    )


def crashed(how: str) -> ExtractionFailed:
    """The reader itself broke on the file."""
    return ExtractionFailed(
        "extraction_failed",
        f"The reader crashed on this file ({how}). Open it in the program that made it, "
        "save it again and try once more.",
    )
