"""Rendering of pages, for any stated size and any encoding of pictures."""

from __future__ import annotations

import math

import pytest

from kb_engine.extract.pictures import LONGEST_SIDE, Pixels
from kb_engine.extract.scans import MOST_HEIGHT, open_pages, scale
from kb_verify.files import pdf_stream
from tests.support.scans import Sheet, drawn, fax, jbig2, jpeg2000, pdf_of_sheets, picture, shown

SIGN = drawn(["The granite quarry", "opens at seven"], (900, 300))
PLAIN = picture(SIGN)
FAX = b"/DecodeParms << /K -1 /Columns 900 /Rows 300 >>"
BOX = b"/MediaBox [0 0 600 200]"


def sheet(entries: bytes, width: float = 600, height: float = 200, named: bytes = PLAIN) -> Sheet:
    return Sheet(shown(width, height), (named,), entries)


def rendered(page: Sheet) -> Pixels | None:
    with open_pages(pdf_of_sheets([page])) as pages:
        return pages.pixels(1)


def ink(pixels: Pixels | None) -> float:
    assert pixels is not None
    return float((pixels < 128).mean())


INK = ink(rendered(sheet(BOX)))


@pytest.mark.parametrize(
    "page",
    [
        sheet(b"/MediaBox [0 0 1000000 333333]", 1_000_000, 333_333),
        sheet(b"/MediaBox [0 0 9 3]", 9, 3),
        sheet(b"/MediaBox [600 200 0 0]"),
        sheet(BOX + b" /UserUnit 75000"),
        sheet(BOX + b" /Rotate 45"),
        Sheet(b"q 0 600 -200 0 200 0 cm /X0 Do Q", (PLAIN,), b"/MediaBox [0 0 200 600] /Rotate 90"),
    ],
    ids=["a million points", "nine points", "upside down", "user unit", "rotated by 45", "rotated by 90"],
)
def test_a_page_of_any_size_is_as_large_as_the_recognizer_looks(page: Sheet) -> None:
    pixels = rendered(page)
    assert pixels is not None
    height, width, colours = pixels.shape
    assert (colours, round(width / height)) == (3, 3)
    assert 900 <= width <= LONGEST_SIDE + 1
    assert ink(pixels) == pytest.approx(INK, rel=0.2)


@pytest.mark.parametrize(
    ("box", "width", "height"),
    [
        (b"[0 0 10 1000000]", 1, MOST_HEIGHT),
        (b"[0 0 1000000 10]", LONGEST_SIDE, 1),
        (b"[0 0 0 0]", 1_546, 2_001),
        (b"[0 0 1e999 1]", 1_546, 2_001),
    ],
)
def test_a_page_of_no_sound_size_is_bounded(box: bytes, width: int, height: int) -> None:
    pixels = rendered(sheet(b"/MediaBox " + box))
    assert pixels is not None
    assert pixels.shape[0] <= height + 1
    assert pixels.shape[1] <= max(width, LONGEST_SIDE) + 1
    assert pixels.size <= 3 * LONGEST_SIDE * MOST_HEIGHT


def test_pages_are_drawn_no_finer_than_they_are_read() -> None:
    """At 200 dpi, or at the resolution of the picture, up to the recognizer's limit."""
    assert scale(300, 400, 0) == pytest.approx(200 / 72)
    assert scale(100, 140, 10) == 10
    assert math.isclose(scale(595, 842, 20) * 842, LONGEST_SIDE)
    assert math.isclose(scale(842, 595, 20) * 842, LONGEST_SIDE)
    assert scale(200, 100_000, 20) * 100_000 <= MOST_HEIGHT


@pytest.mark.parametrize(
    "named",
    [
        picture(SIGN, fax(SIGN), encoding=b"/CCITTFaxDecode", bits=1, entries=FAX),
        picture(SIGN, jbig2(SIGN), encoding=b"/JBIG2Decode", bits=1),
        picture(SIGN, jpeg2000(SIGN), encoding=b"/JPXDecode"),
    ],
    ids=["CCITT", "JBIG2", "JPX"],
)
def test_every_encoding_of_scans_is_shown(named: bytes) -> None:
    assert ink(rendered(sheet(BOX, named=named))) == pytest.approx(INK, rel=0.2)


@pytest.mark.parametrize(
    "named",
    [
        picture(SIGN, fax(SIGN)[:200], encoding=b"/CCITTFaxDecode", bits=1, entries=FAX),
        picture(SIGN, fax(SIGN), encoding=b"/CCITTFaxDecode", bits=1, size=(65_000, 65_000)),
        picture(SIGN, b"\xff" * 4_000, encoding=b"/JBIG2Decode", bits=1, size=(65_535, 65_535)),
        picture(SIGN, jbig2(SIGN)[:60], encoding=b"/JBIG2Decode", bits=1),
        picture(SIGN, jpeg2000(SIGN)[:300], encoding=b"/JPXDecode"),
        picture(SIGN, b"no pixels", encoding=b"/JPXDecode", size=(60_000, 60_000)),
    ],
    ids=[
        "CCITT cut off",
        "CCITT too large",
        "JBIG2 of nothing",
        "JBIG2 cut off",
        "JPX cut off",
        "JPX of nothing",
    ],
)
def test_a_picture_that_is_not_sound_leaves_its_page(named: bytes) -> None:
    pixels = rendered(sheet(BOX, named=named))
    assert pixels is not None
    assert pixels.shape[1] <= LONGEST_SIDE + 1


def test_the_area_that_pictures_cover_is_measured_per_page() -> None:
    form = pdf_stream(
        shown(600, 200),
        b"/Type /XObject /Subtype /Form /BBox [0 0 600 200] /Resources << /XObject << /X0 14 0 R >> >>",
    )
    pages = [
        Sheet(entries=BOX),
        Sheet(b"0 0 m 10 10 l S", entries=BOX),
        Sheet(shown(300, 100), (PLAIN,), BOX),
        Sheet(b"/X0 Do", (form, PLAIN), BOX),
    ]
    with open_pages(pdf_of_sheets(pages)) as shown_pages:
        looks = [shown_pages.look(number) for number in range(1, 5)]
        assert shown_pages.look(5) is None
    assert [look and look.is_bare for look in looks] == [True, False, False, False]
    assert [look and round(look.covered, 2) for look in looks] == [0, 0, 0.25, 1]
