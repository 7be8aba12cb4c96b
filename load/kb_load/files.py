"""Files to take in, made by seed: text, a PDF of text, a scan, and a PDF that never ends."""

from __future__ import annotations

from io import BytesIO
from textwrap import wrap

from faker import Faker

_PAGE_CHARACTERS = 2_500
_LINE_CHARACTERS = 95


def page_of_text(number: int, seed: int) -> list[str]:
    """The lines of a page, about 2,500 characters in all; the same for the same number and seed."""
    faker = Faker("en_GB")
    faker.seed_instance(f"{seed}:{number}")
    lines: list[str] = []
    while sum(map(len, lines)) < _PAGE_CHARACTERS:
        lines += [*wrap(faker.paragraph(10), _LINE_CHARACTERS), ""]
    return lines


def text_pdf(pages: int, *, seed: int) -> bytes:
    """A PDF of so many pages of text in Helvetica."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * page) for page in range(pages))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, pages),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for page in range(pages):
        lines = "\n".join(f"({line}) Tj T*" for line in page_of_text(page + 1, seed))
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * page),
            _stream(f"BT /F1 10 Tf 13 TL 50 790 Td\n{lines}\nET".encode("cp1252", "replace")),
        ]
    return _pdf(objects)


def looping_pdf() -> bytes:
    """A PDF whose page tree holds itself twice: a reader that follows it never ends."""
    return _pdf(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [2 0 R 2 0 R 3 0 R] /Count 1000 >>",
            b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
            _stream(b"BT /F1 12 Tf 72 720 Td (on) Tj ET"),
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        ]
    )


def scanned_pdf(pages: int) -> bytes:
    """A PDF of so many pages, each a picture of 25 lines of text."""
    from PIL import Image, ImageDraw, ImageFont  # comes with matplotlib, and one benchmark needs it alone

    sheet = Image.new("L", (1000, 1414), 255)
    text = "\n".join(f"Line {line} of a page that was scanned" for line in range(25))
    ImageDraw.Draw(sheet).text((80, 80), text, fill=0, font=ImageFont.load_default(28), spacing=16)
    file = BytesIO()
    sheet.save(file, "PDF", save_all=True, append_images=[sheet] * (pages - 1))
    return file.getvalue()


def _stream(data: bytes) -> bytes:
    return b"<< /Length %d >>\nstream\n%b\nendstream" % (len(data), data)


def _pdf(objects: list[bytes]) -> bytes:
    """Objects numbered from 1, the first its catalog, with the table of where each begins."""
    body, table = bytearray(b"%PDF-1.4\n"), b"0000000000 65535 f \n"
    for number, content in enumerate(objects, start=1):
        table += b"%010d 00000 n \n" % len(body)
        body += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    end = b"xref\n0 %d\n%btrailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    return bytes(body) + end % (len(objects) + 1, table, len(objects) + 1, len(body))
