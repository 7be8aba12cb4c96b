"""Pages of PDFs as pictures: passages are found on them, and hostile files stay within the limits."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable
from functools import partial
from tempfile import TemporaryFile

import numpy as np
import pytest
from PIL import Image

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import ExtractionFailed
from kb_readers.model import Context, Extraction, Limits, Page, Picture
from kb_readers.pdf_picture import LONGEST_SIDE, MOST_PIXELS, draw_pdf, matching_runs
from kb_readers.readers import draw_file
from kb_verify.files import locked_pdf, pdf_file, pdf_stream
from tests.support.documents import bushy_pdf, looping_pdf, nested_pdf, seen_pdf
from tests.support.pdfs import pdf_of

PDF = FORMATS["pdf"]
LINE = "The granite of the quarry weighs more"


def drawn(data: bytes, number: int = 1, text: str = "") -> Picture:
    known = Extraction([Page(number, text)], None, "text_extraction", PDF.mime_type)
    return draw_pdf(data, Context("pdf", Limits(), known=known))


def page_of(width: str, height: str, content: bytes = b"0 0 m 9 9 l S") -> bytes:
    """Return a PDF of one page of this size."""
    page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width} {height}] /Contents 4 0 R >>".encode()
    tree = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    return pdf_file([b"<< /Type /Catalog /Pages 2 0 R >>", tree, page, pdf_stream(content)])


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (f"a [{LINE}] b", LINE),
        ("[The granite of the qua\ufffe\r\nrry weighs more]", LINE),
        ("x [ﬁne granite of the quarry]", "| fine | granite \\| of the |\n| quarry |"),
        ("[STRASSE der Steinbrüche am See]", "**Straße** der Steinbrüche am See"),
        ("page 7 [granite]", "granite"),
        (f"[{LINE}] 7 [than basalt of the same size does]", f"{LINE} than basalt of the same size does"),
        (f"{LINE[:-5]}. [{LINE} than basalt]", f"{LINE} than basalt"),
        (f"[{'to and fro, ' * 20}to] be", "to and fro " * 21),
        ("a quarry without the words of the passage", LINE),
        ("", LINE),
        (LINE, "| --- |"),
    ],
    ids=[
        "whole",
        "hyphen",
        "table",
        "case",
        "short",
        "interrupted",
        "repeated",
        "in rhythm",
        "other",
        "scan",
        "no letters",
    ],
)
def test_a_passage_is_found_on_its_page(shown: str, text: str) -> None:
    page = shown.replace("[", "").replace("]", "")
    found = [page[start:end] for start, end in matching_runs(page, text)]
    assert sorted(found) == sorted(re.findall(r"\[([^]]*)\]", shown))


ARABIC = "مضخة Grundfos CR 32-4 على المشكلات الجرانيت"
SEEN = [*"تينارجلا", " ", "ت", "لا", *"كشملا ىلع ", *"Grundfos CR 32-4", *" ةخضم"]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (pdf_of([["granite", LINE, "basalt"]]), LINE),
        (seen_pdf([list("ةميدقلا"), SEEN, list("تلزاب")], by_letter=True), ARABIC),
    ],
    ids=["from left to right", "from right to left"],
)
def test_a_passage_is_marked_where_it_stands(data: bytes, line: str) -> None:
    plain, marked = (np.asarray(Image.open(io.BytesIO(drawn(data, text=text).content)).convert("RGB"))
                     for text in ("", line))  # fmt: skip
    rows, columns = np.nonzero((plain != marked).any(axis=2))
    height, width, _ = plain.shape
    # The second line of three, from 50 points on.
    assert 0.066 < rows.min() / height < rows.max() / height < 0.09
    assert 0.08 < columns.min() / width < columns.max() / width < 0.5
    assert (plain[..., 0] == plain[..., 2]).all()


@pytest.mark.parametrize(
    ("width", "height"),
    [
        ("595", "842"),
        ("14400", "14400"),
        ("1e30", "1e30"),
        ("14400", "1"),
        ("0", "0"),
        ("-9", "x"),
        ("1", "1"),
    ],
)
def test_a_page_of_any_size_is_a_picture_within_the_bounds(width: str, height: str) -> None:
    shown = struct.unpack(">II", drawn(page_of(width, height)).content[16:24])
    assert 0 < shown[0] * shown[1] <= MOST_PIXELS + sum(shown)
    assert max(shown) <= LONGEST_SIDE + 1


@pytest.mark.parametrize(
    ("make", "number", "code"),
    [
        (locked_pdf, 1, "file_encrypted"),
        (looping_pdf, 1, "file_corrupt"),
        (partial(pdf_of, [["a"]]), 2, "extraction_failed"),
        (bushy_pdf, 10_000, "extraction_failed"),
        (lambda: b"<svg onload=alert(1)>", 1, "file_corrupt"),
    ],
    ids=["locked", "page tree in a circle", "no such page", "no page 10,000", "no PDF"],
)
def test_a_page_that_cannot_be_drawn_is_refused(make: Callable[[], bytes], number: int, code: str) -> None:
    with pytest.raises(ExtractionFailed) as failed:
        drawn(make(), number)
    assert failed.value.code == code


@pytest.mark.process
async def test_a_page_that_draws_itself_is_ended_at_the_limit() -> None:
    limits = Limits(cpu_seconds=0.5, memory_bytes=8 << 30, least_memory_bytes=8 << 30)
    with TemporaryFile() as source:
        source.write(nested_pdf())
        source.seek(0)
        with pytest.raises(ExtractionFailed) as failed:
            await draw_file(source, PDF, Page(1, ""), limits)
    assert failed.value.code == "extraction_timeout"
