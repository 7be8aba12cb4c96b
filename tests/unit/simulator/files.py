"""Small files made on the spot: DOCX by zipfile, PDF by hand."""

from __future__ import annotations

import io
import zipfile
import zlib

_NAMESPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def docx(*paragraphs: tuple[str, str], prologue: str = "") -> bytes:
    """A DOCX of paragraphs, each a style ("" for none) and a text."""
    body = "".join(
        f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>'
        for style, text in paragraphs
    )
    xml = f'<w:document xmlns:w="{_NAMESPACE}"><w:body>{body}</w:body></w:document>'
    return zipped({"word/document.xml": (prologue + xml).encode()})


def zipped(members: dict[str, bytes]) -> bytes:
    """A compressed ZIP of members."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return raw.getvalue()


def pdf(*contents: bytes, flate: bool = False, trailer: bytes = b"") -> bytes:
    """A PDF whose pages have these content streams; no cross-reference table, as in a damaged file."""
    kids = b" ".join(b"%d 0 R" % (3 + 2 * place) for place in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, len(contents)),
    ]
    for place, content in enumerate(contents):
        data = zlib.compress(content) if flate else content
        objects.append(b"<< /Type /Page /Parent 2 0 R /Contents %d 0 R >>" % (4 + 2 * place))
        objects.append(
            b"<< /Length %d%b >>\nstream\n%b\nendstream"
            % (len(data), b" /Filter /FlateDecode" if flate else b"", data)
        )
    body = b"".join(b"%d 0 obj\n%b\nendobj\n" % numbered for numbered in enumerate(objects, start=1))
    return b"%PDF-1.4\n" + body + b"trailer\n<< /Root 1 0 R " + trailer + b" >>\nstartxref\n0\n%%EOF\n"
