"""Small EPUB files."""

from __future__ import annotations

import io
import zipfile

CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="{path}" media-type="application/oebps-package+xml"/></rootfiles></container>'
)
PACKAGE = """<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">
<metadata><dc:title>Of Stones</dc:title><dc:title>Second</dc:title></metadata>
<manifest>
<item id="n" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>
<item id="b" href="text/two.xhtml" media-type="application/xhtml+xml"/>
<item id="a" href="text/one%20a.xhtml#x" media-type="application/xhtml+xml"/>
<item id="p" href="p.png" media-type="image/png"/>{more}
</manifest><spine><itemref idref="n"/><itemref idref="a"/><itemref idref="b"/><itemref idref="a"/>
<itemref idref="p"/><itemref idref="gone"/></spine></package>"""
PAGE = '<?xml version="1.0"?><!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml"><body>{}</body></html>'


def book(path: str = "OEBPS/book.opf", package: str = PACKAGE.format(more=""), **parts: str | bytes) -> bytes:
    """An EPUB of two documents. `parts` adds or replaces members, `__` being a slash; "" removes one."""
    content: dict[str, str | bytes] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER.format(path=path),
        path: package,
        "OEBPS/nav.xhtml": PAGE.format("<p>contents</p>"),
        "OEBPS/text/one a.xhtml": PAGE.format("<h1>One</h1><p>Granite is hard.</p>"),
        "OEBPS/text/two.xhtml": PAGE.format("<h1>Two</h1><p>Chalk is not.</p><script>x</script>"),
        **{name.replace("__", "/"): data for name, data in parts.items()},
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            if data:
                archive.writestr(name, data)
    return packed.getvalue()
