"""Documents generated for tests: PDFs with known words on each page, DOCX files, and Office packages.

Members of a package can be changed or added, also with content that no program writes. This module does not
import the engine, so that tests of other parts can use it. The same arguments always give the same bytes.
"""

from __future__ import annotations

import random
import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO
from string import ascii_letters
from types import MappingProxyType
from xml.sax.saxutils import escape

from kb_verify.files import pdf_file, pdf_stream
from tests.support.pdfs import faker_of, pdf_of, text_of_page

_OFFICE = "application/vnd.openxmlformats-officedocument.wordprocessingml"
_OPEN_XML = "http://schemas.openxmlformats.org"
_WORD = f'xmlns:w="{_OPEN_XML}/wordprocessingml/2006/main"'
_CONTENT_TYPES = (
    f'<Types xmlns="{_OPEN_XML}/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/word/document.xml" ContentType="{_OFFICE}.document.main+xml"/>'
    f'<Override PartName="/word/styles.xml" ContentType="{_OFFICE}.styles+xml"/></Types>'
)
_RELATIONSHIPS = (
    f'<Relationships xmlns="{_OPEN_XML}/package/2006/relationships"><Relationship Id="rId1" '
    f'Type="{_OPEN_XML}/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/>'
    "</Relationships>"
)
_STYLES = (
    f"<w:styles {_WORD}>"
    + "".join(
        f'<w:style w:type="paragraph" w:styleId="Heading{n}"><w:name w:val="heading {n}"/></w:style>'
        for n in range(1, 7)
    )
    + "</w:styles>"
)


LOCKED_OFFICE = b"\xd0\xcf\x11\xe0" + bytes(600) + "EncryptedPackage".encode("utf-16-le") + bytes(90)
"""A locked Office file: the package is encrypted inside an older container format (OLE)."""


LOCKED_TRAILER = b"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <%b> /U <%b> >> /ID [<00> <00>]" % (
    b"41" * 32,
    b"42" * 32,
)
"""Trailer entries of a PDF that needs a password."""


def sentence_of_page(number: int, seed: int = 7) -> str:
    """The one sentence that only page `number` (from 1) of `large_pdf(..., seed=seed)` has.

    It fits on one line of the page, so extraction gives it back unbroken.
    """
    if number < 1:
        raise ValueError(f"pages count from 1, got {number}")
    faker = faker_of(f"{seed}:{number}:sentence")
    weighed = f"weighed {faker.random_int(100, 9000)} grams"
    # The page number makes the sentence unique for every seed.
    return f"The {faker.word()} of {faker.city()} was entered as item {number} and {weighed}."


def large_pdf(pages: int, *, filler_bytes: int = 0, seed: int = 7, lines: int | None = None) -> bytes:
    """A valid PDF 1.4 of `pages` pages of varied English text; each starts with its known sentence.

    `filler_bytes` adds a stream of that many incompressible bytes that no page shows, for a larger file
    without more text. `lines` bounds the text of a page. `sentence_of_page(n, seed)` is on page n only.
    """
    if pages < 1:
        raise ValueError(f"a PDF has at least one page, got {pages}")
    texts = [
        [sentence_of_page(number, seed), "", *text_of_page(number, seed=seed)[:lines]]
        for number in range(1, pages + 1)
    ]
    return pdf_of(texts, filler=random.Random(seed).randbytes(filler_bytes))


def docx_of(paragraphs: list[tuple[str, str]]) -> bytes:
    """A DOCX of paragraphs, each with its style: "Heading1" to "Heading6", or "" for body text."""
    body = "".join(
        "<w:p>"
        + (f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else "")
        + f"<w:r><w:t xml:space='preserve'>{escape(text)}</w:t></w:r></w:p>"
        for style, text in paragraphs
    )
    return docx_package(f"<w:document {_WORD}><w:body>{body}</w:body></w:document>")


def docx_package(document: str, more: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
    """A DOCX package around any main document part; `more` holds further members by name."""
    members: dict[str, str | bytes] = {
        "[Content_Types].xml": _CONTENT_TYPES,
        "_rels/.rels": _RELATIONSHIPS,
        "word/styles.xml": _STYLES,
        "word/document.xml": f'<?xml version="1.0" encoding="UTF-8"?>{document}',
        **more,
    }
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return packed.getvalue()


def seen_pdf(lines: list[list[str]], *, by_letter: bool = False) -> bytes:
    """A page of lines of glyphs from left to right, each with its characters.

    They are drawn as one text, or by letter with the marked content of Chromium.
    """
    glyphs = sorted({glyph for line in lines for glyph in line})
    codes = dict(zip(glyphs, ascii_letters, strict=False))  # shapes of about one height
    characters = {glyph: glyph.encode("utf-16-be").hex() for glyph in glyphs}
    rows = "\n".join(f"<{ord(code):X}> <{characters[glyph]}>" for glyph, code in codes.items())
    ranges = "begincmap 1 begincodespacerange <00> <FF> endcodespacerange"
    content = ""
    for row, line in enumerate(lines):
        content += f"BT /F1 10 Tf 1 0 0 1 60 {792 - 14 * row} Tm "
        if by_letter:
            content += "/ReversedChars BMC "
            for glyph in line:
                content += f"/Span <</ActualText <FEFF{characters[glyph]}>>> BDC ({codes[glyph]}) Tj EMC "
            content += "EMC ET "
        else:
            content += f"({''.join(codes[glyph] for glyph in line)}) Tj ET "
    return pdf_file(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [6 0 R] /Count 1 /MediaBox [0 0 595 842] >>",
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /FirstChar 65 /LastChar 122 "
            b"/Widths [%b] /ToUnicode 4 0 R >>" % (b"500 " * 58),
            pdf_stream(f"{ranges} {len(codes)} beginbfchar\n{rows}\nendbfchar endcmap".encode()),
            pdf_stream(content.encode()),
            b"<< /Type /Page /Parent 2 0 R /Contents 5 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
        ]
    )


def looping_pdf() -> bytes:
    """Return a PDF of 576 bytes whose page tree contains itself twice: a naive reader never ends."""
    text = pdf_stream(b"BT /F1 12 Tf 72 720 Td (on) Tj ET")
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    page = b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>"
    tree = b"<< /Type /Pages /Kids [2 0 R 2 0 R 3 0 R] /Count 1000 >>"
    return pdf_file([b"<< /Type /Catalog /Pages 2 0 R >>", tree, page, text, font])


def bushy_pdf(levels: int = 40) -> bytes:
    """A small PDF whose page tree has no cycle but 2 to the power of `levels` pages."""
    nodes = [b"<< /Type /Pages /Kids [%d 0 R %d 0 R] /Count 1000 >>" % (n, n) for n in range(3, levels + 3)]
    page = b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 612 792] >>" % (levels + 1)
    return pdf_file([b"<< /Type /Catalog /Pages 2 0 R >>", *nodes, page])


def nested_pdf(levels: int = 9) -> bytes:
    """A small PDF whose page draws a form XObject that draws another ten times, and so on, `levels` deep."""
    form = b"/Type /XObject /Subtype /Form /BBox [0 0 595 842] /Resources << /XObject << /F %d 0 R >> >>"
    page = (
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R "
        b"/Resources << /XObject << /F 5 0 R >> >> >>"
    )
    forms = [pdf_stream(b"/F Do\n" * 10, form % (6 + level)) for level in range(levels)]
    tree = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    catalog = b"<< /Type /Catalog /Pages 2 0 R >>"
    return pdf_file(
        [catalog, tree, page, pdf_stream(b"/F Do"), *forms, pdf_stream(b"0 0 m 9 9 l S", form % 4)]
    )


Change = Callable[[bytes], bytes]


def rewritten(
    data: bytes, changes: Mapping[str, Change | None], added: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """The package with some members changed (removed if the change is None) and `added` members."""
    packed = BytesIO()
    with zipfile.ZipFile(BytesIO(data)) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            change = changes.get(name, bytes)
            if change is not None:
                new.writestr(name, change(old.read(name)))
        for name, text in added.items():
            new.writestr(name, text)
    return packed.getvalue()


def with_part(data: bytes, name: str, content: bytes) -> bytes:
    return rewritten(data, {name: lambda _: content})


def with_entities(xml: bytes, declaration: bytes) -> bytes:
    root = xml.index(b"?>") + 2 if xml.startswith(b"<?xml") else 0
    return xml[:root] + b"<!DOCTYPE x [" + declaration + b"]>" + xml[root:]


def outside(xml: bytes) -> bytes:
    """An XML file with an external entity that names a local file."""
    return with_entities(xml, b'<!ENTITY e SYSTEM "file:///etc/passwd">')


def laughs(xml: bytes) -> bytes:
    """An XML file with nested entities that expand to a billion values ("billion laughs")."""
    values = [b"ha", *(b"&e%d;" % number * 10 for number in range(9))]
    return with_entities(xml, b"".join(b'<!ENTITY e%d "%b">' % each for each in enumerate(values)))


def encrypted(data: bytes, member: str) -> bytes:
    changed = bytearray(data)
    name = member.encode()
    with zipfile.ZipFile(BytesIO(data)) as archive:
        changed[archive.getinfo(member).header_offset + 6] |= 1
    # In the central directory the flags are 38 bytes before the name.
    changed[data.rindex(name) - 38] |= 1
    return bytes(changed)


ODF_NAMESPACES = " ".join(f'xmlns:{name}="urn:{name}"' for name in ("office", "text", "table", "draw", "dc"))


def odf(kind: str, body: str, **parts: str) -> bytes:
    """Return an OpenDocument file, with further XML parts by name; "__" is a slash and "_" a hyphen."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", f"application/vnd.oasis.opendocument.{kind}")
        archive.writestr(
            "content.xml", f"<office:document-content {ODF_NAMESPACES}>{body}</office:document-content>"
        )
        for name, content in parts.items():
            archive.writestr(name.replace("__", "/").replace("_", "-") + ".xml", content)
    return file.getvalue()
