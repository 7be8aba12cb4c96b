"""What a PDF begins and ends with: whether it is one, and all of it."""

from __future__ import annotations

from kb_engine.extract.failures import ExtractionFailed

# Where readers look for the marks of beginning and end.
_HEAD_BYTES = 1024
_TAIL_BYTES = 2048
_PADDING = b"\0 \t\r\n"


def check_frame(data: bytes) -> None:
    """Raises ExtractionFailed "file_corrupt" for what is no PDF, or the beginning of one."""
    if b"%PDF-" not in data[:_HEAD_BYTES]:
        raise ExtractionFailed("file_corrupt", "The file is not a PDF, although its name says so.")
    # Readers mend a file that was cut off as well as they can, and what is lost is lost in silence.
    if b"%%EOF" not in data[-_TAIL_BYTES:] and b"%%EOF" not in data.rstrip(_PADDING)[-_TAIL_BYTES:]:
        raise ExtractionFailed(
            "file_corrupt",
            "The PDF is cut off: its end is missing. Copy or download it again and try once more.",
        )
