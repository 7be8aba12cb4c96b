"""What a reader that gave up means."""

from __future__ import annotations

import zipfile
from xml.parsers import expat

import pytest

from kb_readers import ExtractionFailed
from kb_readers.xml_files import unsound


def broken_by(code: str) -> expat.ExpatError:
    """As the parser raises it."""
    error = expat.ExpatError(code)
    error.code = expat.errors.codes[code]
    return error


def test_a_parser_that_ran_out_of_memory_says_nothing_of_the_file() -> None:
    """Its sender must not be told to save a sound file again."""
    assert isinstance(unsound("DOCX", broken_by(expat.errors.XML_ERROR_NO_MEMORY)), MemoryError)


@pytest.mark.parametrize(
    "error",
    [broken_by(expat.errors.XML_ERROR_SYNTAX), zipfile.BadZipFile("x" * 10_000), ValueError("no number")],
)
def test_whatever_else_it_meets_is_a_damaged_file(error: Exception) -> None:
    """Told in a few words, whatever the file put into them."""
    failure = unsound("DOCX", error)
    assert isinstance(failure, ExtractionFailed)
    assert failure.code == "file_corrupt"
    assert len(failure.message) < 400
