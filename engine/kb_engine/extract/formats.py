"""Which files are taken, told by the end of their names: those of the contract."""

from __future__ import annotations

from kb_contracts.api import formats
from kb_contracts.api.formats import FORMATS, Format
from kb_engine.extract.failures import ExtractionFailed

__all__ = ["FORMATS", "Format", "format_of"]


def format_of(filename: str) -> Format:
    """The format that the end of the name tells, whatever its case.

    Raises ExtractionFailed "unsupported_format" with the list of what is taken.
    """
    try:
        return formats.format_of(filename)
    except formats.UnsupportedFormat as error:
        raise ExtractionFailed("unsupported_format", error.message) from error
