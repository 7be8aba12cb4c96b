"""Documents made on the spot for tests: PDFs whose words are known page by page, DOCX, and Office files that
are changed member by member or made with parts that no program writes.

Pure standard library, so that a test of another part can make one without the engine's packages.
The same arguments always give the same bytes.
"""

from __future__ import annotations

import io
import random
import textwrap
import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO
from types import MappingProxyType
from xml.sax.saxutils import escape

_PAGE_CHARACTERS = 2_300
_LINE_CHARACTERS = 92
_LEADING_POINTS = 14

_SYLLABLES = (
    "bar",
    "cor",
    "del",
    "fen",
    "gal",
    "har",
    "jor",
    "kel",
    "lom",
    "mar",
    "nev",
    "or",
    "pel",
    "quin",
)
_ENDINGS = ("den", "dale", "ford", "ham", "holt", "ley", "mere", "ness", "stead", "ton", "wick", "worth")
_THINGS = ("lantern", "ledger", "compass", "barometer", "loom", "bell", "sextant", "kettle", "anvil", "globe")
_METALS = ("copper", "pewter", "brass", "silver", "iron", "bronze", "tin", "steel")

_SUBJECTS = (
    "the harbour office", "a careful surveyor", "the river committee", "every second household",
    "the older mill", "a travelling clockmaker", "the county archive", "the keeper of the orchard",
    "an early map of the valley", "the winter market",
)  # fmt: skip
_VERBS = (
    "recorded", "repaired", "compared", "described", "measured", "replaced", "counted", "sheltered",
    "postponed", "inherited",
)  # fmt: skip
_OBJECTS = (
    "the water levels", "a row of stone cottages", "the price of barley", "three unfinished bridges",
    "the opening of the canal", "a collection of letters", "the northern footpath", "two hundred lamps",
    "the sluice gates", "an inventory of tools",
)  # fmt: skip
_ENDS = (
    "before the first frost", "in the year of the flood", "without asking for payment",
    "while the road was closed", "as the charter required", "to settle an old dispute",
    "with help from the neighbours", "until the spring returned", "for the last time",
    "according to the parish register",
)  # fmt: skip

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
"""How Office locks a file: the package lies encrypted in a container of the older kind."""


LOCKED_TRAILER = b"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <%b> /U <%b> >> /ID [<00> <00>]" % (
    b"41" * 32,
    b"42" * 32,
)
"""In the last dictionary of a PDF: it only opens with a password."""


def sentence_of_page(number: int, seed: int = 7) -> str:
    """The one sentence on page `number` (1-based) of `large_pdf(..., seed=seed)`, and on no other page.

    It fits on one line of the page, so extraction gives it back unbroken.
    """
    if number < 1:
        raise ValueError(f"pages count from 1, got {number}")
    dice = random.Random(f"{seed}:{number}")
    town = (dice.choice(_SYLLABLES) + dice.choice(_SYLLABLES) + dice.choice(_ENDINGS)).capitalize()
    thing = f"{dice.choice(_METALS)} {dice.choice(_THINGS)}"
    # The number of the page makes it unique whatever the dice say.
    return (
        f"The {thing} of {town} was entered as item {number} and weighed {dice.randrange(100, 9000)} grams."
    )


def text_of_page(number: int, seed: int = 7) -> list[str]:
    """The lines of page `number` (1-based), about 2,500 characters in all, the known sentence first."""
    dice = random.Random(f"{seed}:{number}:filling")
    lines = [sentence_of_page(number, seed)]
    size = len(lines[0])
    while size < _PAGE_CHARACTERS:
        paragraph = " ".join(_sentence(dice) for _ in range(5))
        size += len(paragraph)
        lines += ["", *textwrap.wrap(paragraph, _LINE_CHARACTERS)]
    return lines


def large_pdf(pages: int, *, filler_bytes: int = 0, seed: int = 7) -> bytes:
    """A valid PDF 1.4 of `pages` pages of varied English-like text in Helvetica.

    `filler_bytes` adds one stream of that many incompressible bytes that no page shows, to reach a
    size of file without more text. `sentence_of_page(n, seed)` stands on page n and nowhere else.
    """
    if pages < 1:
        raise ValueError(f"a PDF has at least one page, got {pages}")
    texts = [text_of_page(number, seed) for number in range(1, pages + 1)]
    return pdf_of(texts, filler=random.Random(seed).randbytes(filler_bytes))


def pdf_of(pages: list[list[str]], *, filler: bytes = b"", trailer: bytes = b"") -> bytes:
    """A PDF with these lines of text on these pages; a line that begins with `# ` is set large and bold.

    `filler` is put into a stream that no page shows, `trailer` into the file's last dictionary.
    """
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
        contents = first_page + 2 * number + 1
        objects += [
            (
                f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {contents} 0 R "
                "/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >> >>"
            ).encode(),
            pdf_stream(_drawing(lines)),
        ]
    return pdf_file(objects, trailer)


def docx_of(paragraphs: list[tuple[str, str]]) -> bytes:
    """A DOCX of paragraphs, each with its style: "Heading1" to "Heading6", or "" for body text."""
    body = "".join(
        f"<w:p>{_styled(style)}<w:r><w:t xml:space='preserve'>{escape(text)}</w:t></w:r></w:p>"
        for style, text in paragraphs
    )
    return docx_package(f"<w:document {_WORD}><w:body>{body}</w:body></w:document>")


def docx_package(document: str, more: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
    """A DOCX package around any main part, with further members by name."""
    members = {
        "[Content_Types].xml": _CONTENT_TYPES,
        "_rels/.rels": _RELATIONSHIPS,
        "word/styles.xml": _STYLES,
        "word/document.xml": f'<?xml version="1.0" encoding="UTF-8"?>{document}',
        **more,
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return packed.getvalue()


def _styled(style: str) -> str:
    return f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""


def _sentence(dice: random.Random) -> str:
    words = (dice.choice(_SUBJECTS), dice.choice(_VERBS), dice.choice(_OBJECTS), dice.choice(_ENDS))
    return " ".join(words).capitalize() + "."


def _drawing(lines: list[str]) -> bytes:
    """The page's content stream: each line shown and the next one begun below it."""
    shown = "\n".join(_shown(line) for line in lines)
    return f"BT /F1 10 Tf {_LEADING_POINTS} TL 50 790 Td\n{shown}\nET".encode("cp1252")


def _shown(line: str) -> str:
    if line.startswith("# "):
        return f"/F2 18 Tf ({_escaped(line[2:])}) Tj T* T* /F1 10 Tf"
    return f"({_escaped(line)}) Tj T*"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def looping_pdf() -> bytes:
    """A PDF of 576 bytes whose page tree holds itself twice: a reader that follows it never ends."""
    text = pdf_stream(b"BT /F1 12 Tf 72 720 Td (on) Tj ET")
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    page = b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>"
    tree = b"<< /Type /Pages /Kids [2 0 R 2 0 R 3 0 R] /Count 1000 >>"
    return pdf_file([b"<< /Type /Catalog /Pages 2 0 R >>", tree, page, text, font])


def bushy_pdf(levels: int = 40) -> bytes:
    """A small PDF whose page tree holds no node within itself, and yet 2 to the power of `levels` pages."""
    nodes = [b"<< /Type /Pages /Kids [%d 0 R %d 0 R] /Count 1000 >>" % (n, n) for n in range(3, levels + 3)]
    page = b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 612 792] >>" % (levels + 1)
    return pdf_file([b"<< /Type /Catalog /Pages 2 0 R >>", *nodes, page])


def nested_pdf(levels: int = 9) -> bytes:
    """A small PDF whose page shows a form that shows another ten times, and so on for so many levels."""
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


def pdf_stream(data: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(data), entries, data)


def pdf_file(objects: list[bytes], trailer: bytes = b"") -> bytes:
    """A PDF of objects numbered from 1, the first its catalog, with the table that says where each begins."""
    body = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    offsets: list[int] = []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    start = len(body)
    body += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    body += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    body += b"trailer\n<< /Size %d /Root 1 0 R %b >>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, start)
    return bytes(body)


Change = Callable[[bytes], bytes]


def rewritten(
    data: bytes,
    changes: Mapping[str, Change | None],
    added: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """The package with these members changed, left out where the change is None, or added."""
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
    """An XML file with an entity that wants a file of this machine."""
    return with_entities(xml, b'<!ENTITY e SYSTEM "file:///etc/passwd">')


def laughs(xml: bytes) -> bytes:
    """An XML file that defines a billion of them, by entities that hold entities."""
    values = [b"ha", *(b"&e%d;" % number * 10 for number in range(9))]
    return with_entities(xml, b"".join(b'<!ENTITY e%d "%b">' % each for each in enumerate(values)))


def encrypted(data: bytes, member: str) -> bytes:
    changed = bytearray(data)
    name = member.encode()
    with zipfile.ZipFile(BytesIO(data)) as archive:
        changed[archive.getinfo(member).header_offset + 6] |= 1
    # In the directory at the end the flags lie 38 bytes before the name.
    changed[data.rindex(name) - 38] |= 1
    return bytes(changed)
