"""The exception for files that cannot be read, with a stable code, and the message of each case."""

from __future__ import annotations

from collections.abc import Mapping
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

_LONGEST_REASON = 200


class ExtractionFailed(Exception):
    """A file yields no text, by no fault of the engine. The message is for users."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.code: FailureCode = code
        self.message = message


def too_much_text(most_bytes: int) -> ExtractionFailed:
    why = f"The file holds more than {most_bytes:,} bytes of text. Split it and add the parts."
    return ExtractionFailed("extraction_failed", why)


def too_much_memory(most_bytes: int) -> ExtractionFailed:
    return ExtractionFailed(
        "extraction_memory",
        f"Reading the file took more than {most_bytes >> 20:,} MiB of memory. "
        "Split it, or save it without its largest pictures, and try again.",
    )


def too_long(most_seconds: float) -> ExtractionFailed:
    why = f"Reading the file took more than {most_seconds:g} seconds. Split it and add the parts."
    return ExtractionFailed("extraction_timeout", why)


def unsafe(label: str, reason: str) -> ExtractionFailed:
    why = f"The {label} file holds more than is safe to read ({reason}). Split it and add the parts."
    return ExtractionFailed("extraction_failed", why)


def locked(label: str) -> ExtractionFailed:
    why = f"The {label} file is locked with a password. Save it without one and send it again."
    return ExtractionFailed("file_encrypted", why)


def damaged(label: str, reason: str) -> ExtractionFailed:
    return ExtractionFailed(
        "file_corrupt",
        f"The {label} file cannot be read: it is damaged or cut off ({reason[:_LONGEST_REASON]}). "
        "Open it in the program that made it, save it again and try once more.",
    )


def crashed(how: str) -> ExtractionFailed:
    return ExtractionFailed(
        "extraction_failed",
        f"The reader crashed on this file ({how}). Open it in the program that made it, "
        "save it again and try once more.",
    )


def no_sandbox(missing: Mapping[str, str]) -> ExtractionFailed:
    reasons = "; ".join(f"{part}: {reason}" for part, reason in missing.items())
    return ExtractionFailed(
        "extraction_failed",
        f"KB_SANDBOX=require, and this system does not have the whole sandbox ({reasons}), so files are not "
        "read. Run the engine where it can be had, or set KB_SANDBOX=auto.",
    )
