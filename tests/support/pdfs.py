"""Generated PDFs: pages of seeded text, and a file whose page tree has a cycle.

The same arguments give the same bytes.
"""

from __future__ import annotations

from functools import cache
from textwrap import wrap

from faker import Faker

from kb_verify.files import pdf_file, pdf_stream

_PAGE_CHARACTERS = 2_300
_LINE_CHARACTERS = 92
_LEADING_POINTS = 14


def faker_of(seed: str) -> Faker:
    """Return the shared Faker, seeded with the arguments: constructing one is slower than filling a page."""
    faker = _faker()
    faker.seed_instance(seed)
    return faker


@cache
def _faker() -> Faker:
    return Faker("en_GB")


def text_of_page(number: int, *, seed: int) -> list[str]:
    """Return the lines of a page, about 2,500 characters, determined by number and seed."""
    faker = faker_of(f"{seed}:{number}")
    lines: list[str] = []
    while sum(map(len, lines)) < _PAGE_CHARACTERS:
        lines += [*wrap(faker.paragraph(10), _LINE_CHARACTERS), ""]
    return lines


def pdf_of(pages: list[list[str]], *, filler: bytes = b"", trailer: bytes = b"") -> bytes:
    """Return a PDF with the lines of each page; a line that begins with `# ` is set large and bold.

    `filler` is the content of a stream that no page refers to; `trailer` is added to the trailer dictionary.
    """

    def drawn(line: str) -> str:
        text = line.removeprefix("# ").replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
        return f"/F2 18 Tf ({text}) Tj T* T* /F1 10 Tf" if line.startswith("# ") else f"({text}) Tj T*"

    first_page = 6
    kids = " ".join(f"{first_page + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R /KbFiller 5 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold /Encoding /WinAnsiEncoding >>",
        pdf_stream(filler),
    ]
    for number, lines in enumerate(pages):
        content = "\n".join(map(drawn, lines))
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >> >>" % (first_page + 2 * number + 1),
            pdf_stream(f"BT /F1 10 Tf {_LEADING_POINTS} TL 50 790 Td\n{content}\nET".encode("cp1252")),
        ]
    return pdf_file(objects, trailer)
