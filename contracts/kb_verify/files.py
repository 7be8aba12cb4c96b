"""Small files of the formats that every engine reads, and handwritten multipart bodies."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from xml.sax.saxutils import escape

BOUNDARY = "b0undary"
MULTIPART = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
END = f"--{BOUNDARY}--\r\n".encode()
FILE = {"tags": '["collection:documents"]', "dedup_scope": "collection:documents"}
"""Fields of a file in the collection `documents`."""

_OFFICE = "http://schemas.openxmlformats.org"
_WORD = f"{_OFFICE}/wordprocessingml/2006/main"
_PACKAGE = {
    "[Content_Types].xml": (
        f'<Types xmlns="{_OFFICE}/package/2006/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument'
        '.wordprocessingml.document.main+xml"/></Types>'
    ),
    "_rels/.rels": (
        f'<Relationships xmlns="{_OFFICE}/package/2006/relationships"><Relationship Id="rId1" '
        f'Type="{_OFFICE}/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/>'
        "</Relationships>"
    ),
}


def part(disposition: str, data: bytes, *, header: str = "") -> bytes:
    head = f"--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n{header}\r\n"
    return head.encode() + data + b"\r\n"


def field_part(name: str, data: bytes) -> bytes:
    return part(f'form-data; name="{name}"', data)


def file_part(data: bytes = b"granite", filename: str = "a.txt") -> bytes:
    return part(f'form-data; name="file"; filename="{filename}"', data)


def docx(*paragraphs: str) -> bytes:
    body = "".join(f"<w:p><w:r><w:t>{escape(text)}</w:t></w:r></w:p>" for text in paragraphs)
    document = f'<?xml version="1.0"?><w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>'
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**_PACKAGE, "word/document.xml": document}.items():
            archive.writestr(name, content)
    return packed.getvalue()


def locked_pdf() -> bytes:
    """Return a PDF of one page that needs a password."""
    keys = f"/O <{'41' * 32}> /U <{'42' * 32}>"
    return pdf(["granite"], f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 {keys} >> /ID [<00> <00>]")


def pdf(pages: Sequence[str], trailer: str = "") -> bytes:
    """Return a PDF 1.4 with one line of ASCII on each page; a line must have no brackets or backslashes."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for number, line in enumerate(pages):
        drawing = f"BT /F1 12 Tf 50 700 Td ({line}) Tj ET".encode("ascii")
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * number),
            pdf_stream(drawing),
        ]
    return pdf_file(objects, trailer.encode("ascii"))


def pdf_stream(data: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(data), entries, data)


def pdf_file(objects: Sequence[bytes], trailer: bytes = b"") -> bytes:
    """Return a PDF of objects numbered from 1, the first its catalog, with a cross-reference table."""
    body, table = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n"), b"0000000000 65535 f \n"
    for number, content in enumerate(objects, start=1):
        table += b"%010d 00000 n \n" % len(body)
        body += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    size = len(objects) + 1
    end = b"xref\n0 %d\n%btrailer\n<< /Size %d /Root 1 0 R %b >>\nstartxref\n%d\n%%%%EOF\n"
    return bytes(body) + end % (size, table, size, trailer, len(body))
