"""PDFs whose pages are pictures: scans in every encoding, and pages of any size and shape.

They are made with Pillow, so that only tests which need OCR import this module.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

from PIL import Image, ImageDraw, ImageFont, ImageOps

from kb_verify.files import pdf_file, pdf_stream

A4 = (595, 842)
_LETTERS_PIXELS = 24
_LEADING_PIXELS = 44


@dataclass(frozen=True)
class Sheet:
    """A page: its content stream, the objects X0, X1 and so on named there, and dictionary entries."""

    content: bytes = b""
    named: Sequence[bytes] = ()
    entries: bytes = b"/MediaBox [0 0 595 842]"


def drawn(lines: Sequence[str], size: tuple[int, int] = (1000, 1414)) -> Image.Image:
    picture = Image.new("L", size, "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(size=_LETTERS_PIXELS)
    for number, line in enumerate(lines, start=1):
        pen.text((60, number * _LEADING_PIXELS), line, fill="black", font=font)
    return picture


def scan(lines: Sequence[str], text: str = "") -> Sheet:
    """An A4 page that shows a picture of these lines, with `text` above it if given."""
    return Sheet(shown() + words(text), (picture(drawn(lines)),))


def shown(width: float = A4[0], height: float = A4[1]) -> bytes:
    return b"q %f 0 0 %f 0 0 cm /X0 Do Q " % (width, height)


def words(text: str) -> bytes:
    return b"BT /F1 8 Tf 20 20 Td (%b) Tj ET " % text.encode("ascii") if text else b""


def picture(
    pixels: Image.Image,
    data: bytes | None = None,
    *,
    encoding: bytes = b"/FlateDecode",
    bits: int = 8,
    size: tuple[int, int] | None = None,
    entries: bytes = b"",
) -> bytes:
    """An image object; `data` are its encoded pixels, `size` is the size that its dictionary states."""
    width, height = size or pixels.size
    return pdf_stream(
        zlib.compress(pixels.tobytes()) if data is None else data,
        b"/Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceGray /BitsPerComponent %d "
        b"/Filter %b %b" % (width, height, bits, encoding, entries),
    )


def pdf_of_sheets(sheets: Sequence[Sheet], *, trailer: bytes = b"") -> bytes:
    objects = [b"", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for sheet in sheets:
        number = len(objects) + 1
        kids.append(b"%d 0 R" % number)
        named = b" ".join(b"/X%d %d 0 R" % (place, number + 2 + place) for place in range(len(sheet.named)))
        objects += [
            b"<< /Type /Page /Parent 2 0 R /Contents %d 0 R %b /Resources << /Font << /F1 3 0 R >> "
            b"/XObject << %b >> >> >>" % (number + 1, sheet.entries, named),
            pdf_stream(sheet.content),
            *sheet.named,
        ]
    objects[0] = b"<< /Type /Catalog /Pages 2 0 R >>"
    objects[1] = b"<< /Type /Pages /Kids [%b] /Count %d >>" % (b" ".join(kids), len(kids))
    return pdf_file(objects, trailer)


def fax(pixels: Image.Image) -> bytes:
    file = BytesIO()
    # Pillow writes white as 0, which both formats read as black.
    ImageOps.invert(pixels).convert("1").save(file, "TIFF", compression="group4", strip_size=1 << 30)
    with Image.open(file) as saved:
        tags = saved.tag_v2  # type: ignore[attr-defined]
        (start,), (length,) = tags[273], tags[279]
    return file.getvalue()[start : start + length]


def jbig2(pixels: Image.Image) -> bytes:
    """The picture in two colours, as the JBIG2 segments that a PDF holds: a page and one region in T.6."""
    width, height = (side.to_bytes(4, "big") for side in pixels.size)
    nothing = bytes(4)
    page = width + height + nothing * 2 + b"\0" * 3
    region = width + height + nothing * 2 + b"\0" + b"\1" + fax(pixels)
    return _segment(0, 48, page) + _segment(1, 38, region)


def _segment(number: int, kind: int, data: bytes) -> bytes:
    return number.to_bytes(4, "big") + bytes([kind, 0, 1]) + len(data).to_bytes(4, "big") + data


def jpeg2000(pixels: Image.Image) -> bytes:
    file = BytesIO()
    pixels.save(file, "JPEG2000")
    return file.getvalue()
