"""Plain text and Markdown: formats by name, strict decoding, headings."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from kb_contracts.api.formats import FORMATS, Format
from kb_readers.detection import LEAST_BYTES
from kb_readers.failures import ExtractionFailed
from kb_readers.markdown import headings, title_of
from kb_readers.model import Limits
from kb_readers.readers import format_of
from kb_readers.text import FEW_LETTERS, has_few_letters, read_text
from tests.support.reading import read_path

TEXT, MARKDOWN = FORMATS["txt"], FORMATS["md"]


async def read(folder: Path, data: bytes, limits: Limits | None = None) -> str:
    path = folder / "file"
    path.write_bytes(data)
    extraction = await read_path(path, TEXT, limits or Limits())
    assert [page.number for page in extraction.pages] == [None]
    return extraction.pages[0].text


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        ("a.txt", "txt"),
        ("a.LOG", "txt"),
        ("notes.text", "txt"),
        ("README.Md", "md"),
        ("x.markdown", "md"),
        ("x.htm", "html"),
        ("x.y.HTML", "html"),
        ("report.PDF", "pdf"),
        ("letter.docx", "docx"),
        ("talk.pptx", "pptx"),
        ("sums.XLSX", "xlsx"),
        ("plan.svg", "svg"),
        ("photo.jpeg", "jpg"),
        ("photo.JPG", "jpg"),
        ("scan.png", "png"),
        ("LICENSE", "txt"),
        ("src/Makefile", "txt"),
        ("sums.xlsm", "xlsx"),
        ("rows.ndjson", "json"),
    ],
)
def test_the_end_of_a_name_tells_the_format_in_any_case(filename: str, name: str) -> None:
    assert format_of(filename) is FORMATS[name]


@pytest.mark.parametrize(
    "filename", ["a.xyz", "a.wpd", "a.mdb", "a.svgz", "noextension", ".pdf", "", "a.pdf.exe"]
)
def test_an_unknown_extension_is_refused_with_the_accepted_ones(filename: str) -> None:
    with pytest.raises(ExtractionFailed) as failed:
        format_of(filename)
    assert failed.value.code == "unsupported_format"
    taken = [extension for each in FORMATS.values() for extension in each.extensions]
    assert all(extension in failed.value.message for extension in taken)


def test_no_two_formats_share_an_extension() -> None:
    taken = [extension for each in FORMATS.values() for extension in each.extensions]
    assert len(taken) == len(set(taken))
    assert all(key == each.name for key, each in FORMATS.items())


@pytest.mark.parametrize(
    "encoded",
    [
        "Grüße, 世界 🐝\r\n".encode(),
        codecs.BOM_UTF8 + "Grüße, 世界 🐝\r\n".encode(),
        codecs.BOM_UTF16_LE + "Grüße, 世界 🐝\r\n".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "Grüße, 世界 🐝\r\n".encode("utf-16-be"),
        codecs.BOM_UTF32_LE + "Grüße, 世界 🐝\r\n".encode("utf-32-le"),
        codecs.BOM_UTF32_BE + "Grüße, 世界 🐝\r\n".encode("utf-32-be"),
    ],
)
async def test_a_byte_order_mark_tells_the_encoding_and_goes(tmp_path: Path, encoded: bytes) -> None:
    assert await read(tmp_path, encoded) == "Grüße, 世界 🐝\r\n"


@pytest.mark.parametrize(
    "data",
    [
        "Grüße".encode("cp1252"),
        b"\x80\x81\x82",
        "plain".encode("utf-16-le"),
        b"text with a \0 in it",
        codecs.BOM_UTF16_LE + b"\x00\xd8x\x00",
        b"\xed\xa0\x80",
    ],
)
async def test_a_text_file_that_cannot_be_decoded_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ExtractionFailed) as failed:
        await read(tmp_path, data)
    assert failed.value.code == "undecodable_text"
    assert "UTF-8" in failed.value.message


GERMAN = (
    "Die Größe der Gesteinsproben wurde über mehrere Jahre gemessen. Für die Prüfung der Öfen wären "
    "weitere Stücke nötig; außerdem müssen die Türen größer werden, damit schwere Blöcke hindurchgehen. "
    "Später hörte man, daß im Süden ähnliche Brüche geöffnet worden waren.\n"
)
RUSSIAN = (
    "Размеры образцов породы измеряли в течение нескольких лет. Для проверки печей потребуются новые куски, "
    "кроме того, двери должны стать шире, чтобы через них проходили тяжёлые блоки. Позднее такие же "
    "каменоломни открылись и на юге.\n"
)
FRENCH = (
    "La carrière de granit se trouvait à l'extrémité de la vallée, près des forêts. Où les ouvriers "
    "dressèrent-ils leurs échelles ? Le maître le sait peut-être : il a déjà noté les pièces, leur côté, et "
    "la façon dont on les a taillées.\n"
)


@pytest.mark.parametrize(
    ("text", "encoding", "label", "fmt"),
    [
        (GERMAN, "cp850", "cp850", TEXT),
        (FRENCH, "cp1252", "windows-1252", FORMATS["html"]),
        (RUSSIAN, "cp1251", "windows-1251", TEXT),
        (RUSSIAN, "koi8_r", "koi8-r", FORMATS["csv"]),
        (GERMAN, "utf-16-le", "utf-16le", FORMATS["html"]),
        (FRENCH, "utf-16-be", "utf-16be", TEXT),
    ],
)
async def test_a_certain_encoding_is_detected_and_named(
    tmp_path: Path, text: str, encoding: str, label: str, fmt: Format
) -> None:
    path = tmp_path / "file"
    path.write_bytes(text.encode(encoding))
    extraction = await read_path(path, fmt)
    assert set(text.split()[:5]) <= set(extraction.pages[0].text.split())
    assert extraction.remark == f"It does not declare its encoding; it was read as {label}."


@pytest.mark.parametrize(
    "data",
    [
        GERMAN.encode("cp1252")[: LEAST_BYTES - 1],
        GERMAN.encode().replace("ß".encode(), b"\xc3", 1),
        RUSSIAN.encode("cp1251") + b"\x98",
        RUSSIAN.encode("utf-16-le"),
        bytes([1, 0, 2, 0]) * 100,
        bytes(range(1, 256)) * 2,
    ],
    ids=["short", "damaged UTF-8", "one wrong byte", "NUL", "numbers", "noise"],
)
async def test_an_uncertain_encoding_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ExtractionFailed) as failed:
        await read(tmp_path, data)
    assert failed.value.code == "undecodable_text"


async def test_a_file_beyond_the_limit_is_refused_and_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(f"<p>{RUSSIAN}</p>".encode("cp1251") * 4)
    with pytest.raises(ExtractionFailed) as failed:
        await read_path(path, FORMATS["html"], Limits(text_bytes=path.stat().st_size - 1))
    assert failed.value.code == "undecodable_text"


async def test_text_at_the_limit_is_taken_and_a_byte_more_is_not(tmp_path: Path) -> None:
    limits = Limits(text_bytes=1000)
    assert len(await read(tmp_path, b"x" * 1000, limits)) == 1000
    assert len(await read(tmp_path, "é".encode() * 500, limits)) == 500
    utf16 = codecs.BOM_UTF16_LE + ("世" * 400).encode("utf-16-le")
    for data in (b"x" * 1001, utf16):
        with pytest.raises(ExtractionFailed, match="1,000 bytes") as failed:
            await read(tmp_path, data, limits)
        assert failed.value.code == "extraction_failed"


async def test_an_empty_file_is_an_empty_text(tmp_path: Path) -> None:
    assert await read(tmp_path, b"") == ""
    assert await read(tmp_path, codecs.BOM_UTF8) == ""


async def test_the_first_heading_is_the_title_of_markdown_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("intro\n\n## Second\n\n# The *Title* of `it` #\n")
    assert (await read_path(path, MARKDOWN)).title == "The *Title* of it"
    assert (await read_path(path, TEXT)).title is None


def test_a_title_has_no_emphasis_and_no_escapes() -> None:
    (heading,) = headings("# **Bold** \\*x\\*  `y`\n")
    assert (heading.level, heading.title) == (1, "Bold *x* y")


def test_a_heading_without_end_is_cut() -> None:
    """Otherwise every chunk below it would repeat the whole."""
    (heading,) = headings("# " + "x" * 100_000)
    assert len(heading.title) == 200
    assert heading.title.endswith("…")


def test_a_title_has_words() -> None:
    assert title_of("#\n\n# Real") == "Real"
    assert title_of("## Only a second level") is None


@pytest.mark.parametrize(
    "front",
    [
        "---\ntitle: My Page\ntags: [a, b]\n---\n",
        "---\r\ntags:\r\n  - a\r\ntitle: 'My Page'\r\n---\r\n",
        '+++\ntitle = "My Page"\ndate = 2026-01-02\n# no heading\n[params]\nx = 1\n+++\n',
        "---\nid: page\ntitle: >\n  My\n  Page\n...\n",
    ],
    ids=["Jekyll", "Obsidian", "Hugo", "folded"],
)
def test_the_title_of_a_front_matter_is_the_title_of_the_file(front: str) -> None:
    text = f"{front}\nGranite\n\n# Stones\n"
    found = read_text(text.encode(), MARKDOWN.mime_type)
    assert (found.title, found.pages[0].text) == ("My Page", text)
    assert read_text(text.encode(), TEXT.mime_type).title is None


@pytest.mark.parametrize(
    "front",
    [
        "---\ntags: [a]\n---\n",
        "---\ntitle: ~\n---\n",
        "---\ntitle: [My, Page]\n---\n",
        "---\ntitle: &a x\nb: *a\n---\n",
        "---\ntitle: " + "[" * 1_000 + "\n---\n",
        "---\ntitle: !!python/object/apply:os.system [x\n---\n",
        "---\ntitle: x\n" + "a: b\n" * 20_000 + "---\n",
        "+++\ntitle = 2026-01-02\n+++\n",
        "+++\ntitle = " + "[" * 50_000 + "\n+++\n",
        "+++\ntitle: x\n+++\n",
        '---\ntitle: "\u200b"\n---\n',
    ],
    ids=["none", "null", "list", "alias", "deep", "tag", "long", "date", "deep TOML", "no TOML", "invisible"],
)
def test_a_file_whose_front_matter_has_no_title_has_that_of_its_first_heading(front: str) -> None:
    assert read_text(f"{front}\n# Stones\n".encode(), MARKDOWN.mime_type).title == "Stones"


def test_a_page_has_few_letters_whatever_its_white_space() -> None:
    assert has_few_letters("a \n" * (FEW_LETTERS - 1)) is True
    assert has_few_letters("a" * FEW_LETTERS) is False
