"""JPG and PNG: the words in a picture, and limits of its cost."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont, ImageOps

from kb_config.installing import install_command
from kb_contracts.api.formats import FORMATS, Format
from kb_engine.extract import extract
from kb_engine.extract.pictures import MOST_PIXELS, draw_picture, read_picture
from kb_readers.failures import ExtractionFailed
from kb_readers.model import Context, Extraction, Limits
from tests.support.pdfs import pdf_of

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("loaded_models")]

JPG, PNG = FORMATS["jpg"], FORMATS["png"]
FONT = ImageFont.load_default(size=24)
NAMED = "50,000,000 are the most that are read"


def drawn(size: tuple[int, int], *texts: tuple[int, int, str]) -> Image.Image:
    picture = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(picture)
    for left, top, text in texts:
        pen.text((left, top), text, fill="black", font=FONT)
    return picture


SIGN = drawn((640, 200), (30, 30, "The granite quarry"), (30, 70, "opens at seven"))


def saved(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def read(data: bytes, fmt: Format) -> Extraction:
    return read_picture(data, Context(fmt.name, Limits()))


def text(data: bytes, fmt: Format = PNG) -> str:
    (page,) = read(data, fmt).pages
    assert page.number is None
    return page.text


def header_of(width: int, height: int, colours: int = 2) -> bytes:
    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)
    body = part(b"IHDR", size) + part(b"IDAT", zlib.compress(bytes(1000))) + part(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(("fmt", "kind"), [(PNG, "PNG"), (JPG, "JPEG")], ids=["png", "jpg"])
async def test_the_words_of_a_picture_are_read_in_the_child(tmp_path: Path, fmt: Format, kind: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(saved(SIGN, kind))
    extraction = await extract(path, fmt)
    (page,) = extraction.pages
    assert page.text == "The granite quarry\nopens at seven"
    assert (extraction.method, extraction.mime_type) == ("image_analysis", fmt.mime_type)
    assert extraction.title is None


def test_reading_a_picture_downloads_no_model(
    monkeypatch: pytest.MonkeyPatch, loaded_models: Callable[[], None]
) -> None:
    """The models are part of the package."""
    loaded_models()  # forgets them

    def fetched(*_: object) -> None:
        raise AssertionError("fetched")

    monkeypatch.setattr(import_module("rapidocr.utils.download_file").DownloadFile, "run", fetched)
    assert "granite" in text(saved(SIGN))


def test_a_tall_picture_is_read_in_pieces() -> None:
    """Each row is read once, although the whole would be scaled too small."""
    rows = [f"Row {number} of a long screenshot" for number in range(56)]
    tall = drawn((500, 2400), *((20, 20 + 41 * number, row) for number, row in enumerate(rows)))
    assert [line for line in text(saved(tall)).split("\n") if line] == rows


def test_a_picture_of_any_shape_is_read_or_passed_over() -> None:
    assert text(saved(drawn((2000, 30), (20, 2, "The granite quarry opens at seven")))) == (
        "The granite quarry opens at seven"
    )
    assert text(saved(drawn((120, 1800), (20, 900, "quarry")))) == "quarry"
    for size in ((3, 9_000), (9_000, 3), (12, 2_000), (6_000, 16)):
        assert text(saved(drawn(size))) == ""


def test_text_beside_is_its_own_line_and_a_gap_starts_a_paragraph() -> None:
    """Another column is a line of its own; text that looks like a Markdown heading is escaped."""
    page = drawn((900, 400), (20, 20, "Total"), (700, 20, "12.50 EUR"), (20, 300, "# thank you"))
    assert text(saved(page)) == "Total\n12.50 EUR\n\n\\# thank you"


def test_columns_of_running_text_are_read_one_after_the_other() -> None:
    """The gap between the columns is no wider than between two words of a wide line."""
    left = [
        "The quarry was opened by two",
        "brothers who had bought the",
        "hill for the sake of its sheep",
        "and found granite.",
    ]
    right = [
        "Sixty years later it was so",
        "deep that water had to be",
        "pumped out day and night, and",
        "it was given up.",
    ]
    rows = [(30, 90 + 40 * number, row) for number, row in enumerate(left)]
    rows += [(430, 90 + 40 * number, row) for number, row in enumerate(right)]
    page = drawn((860, 300), (200, 20, "The history of the granite quarry"), *rows)
    found = [line for line in text(saved(page)).split("\n") if line]
    assert found == ["The history of the granite quarry", *left, *right]


def test_a_picture_is_turned_as_the_camera_says_and_lies_on_white() -> None:
    """The text read is the text that a viewer shows."""
    turned = Image.Exif()
    turned[0x0112] = 6  # to be rotated right by 90 degrees
    assert "granite" in text(saved(SIGN.rotate(90, expand=True), "JPEG", exif=turned), JPG)
    clear = Image.new("RGBA", SIGN.size, (0, 0, 0, 0))
    ImageDraw.Draw(clear).text((30, 30), "clear as glass", fill=(0, 0, 0, 255), font=FONT)
    assert text(saved(clear)) == "clear as glass"


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_a_picture_that_lies_is_turned_before_it_is_read(degrees: int) -> None:
    turned = SIGN.rotate(degrees, expand=True)
    assert text(saved(turned)) == "The granite quarry\nopens at seven"


def test_lines_that_cannot_be_read_are_no_words_and_are_not_passed_over_in_silence() -> None:
    """Mirrored text, for example, where the few certain lines are chance."""
    extraction = read(saved(ImageOps.mirror(SIGN)), PNG)
    assert extraction.pages[0].text == ""
    assert extraction.remark is not None
    assert extraction.remark.startswith("In the picture there are lines that could not be read")


def test_a_picture_of_twenty_thousand_pixels_is_read_from_end_to_end() -> None:
    """In pieces: scaled down as a whole it would not be legible."""
    wide = drawn((20_000, 200), (60, 60, "The granite quarry"), (19_500, 60, "at seven"))
    extraction = read(saved(wide), PNG)
    assert (extraction.pages[0].text, extraction.remark) == ("The granite quarry\n\nat seven", None)


@pytest.mark.parametrize(("fmt", "kind"), [(PNG, "PNG"), (JPG, "JPEG")], ids=["png", "jpg"])
async def test_above_the_limit_a_picture_is_scaled_and_the_limit_named(
    tmp_path: Path, fmt: Format, kind: str
) -> None:
    large = Image.new("L", (50_000, 1_100), "white")
    large.paste(
        drawn((640, 200), (30, 30, "The granite quarry")).convert("L").resize((1_280, 400)), (400, 100)
    )
    path = tmp_path / "x"
    path.write_bytes(saved(large, kind))
    extraction = await extract(path, fmt)
    assert extraction.pages[0].text == "The granite quarry"
    assert extraction.remark == f"It has 50,000 x 1,100 pixels, and {NAMED}, so it was scaled down."


def test_a_picture_too_large_to_decode_is_refused_with_its_size() -> None:
    """A progressive JPG is held in memory as a whole while it is decoded."""
    data = bytearray(saved(SIGN, "JPEG", progressive=True))
    frame = data.index(b"\xff\xc2")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 20_000, 20_000)
    with pytest.raises(ExtractionFailed, match=f"20,000 x 20,000 pixels, and {NAMED}") as failed:
        read(bytes(data), JPG)
    assert failed.value.code == "extraction_failed"


def test_of_an_animated_picture_the_first_is_read() -> None:
    frames = [drawn(SIGN.size, (30, 30, word)) for word in ("feldspar", "zircon")]
    data = saved(SIGN, "PNG", save_all=True, append_images=frames)
    extraction = read(data, PNG)
    assert extraction.pages[0].text == "The granite quarry\nopens at seven"
    assert extraction.remark == "It is animated: its first picture was read."
    blank = [Image.new("L", (90, 90), shade) for shade in (0, 255)]
    extraction = read(saved(blank[0], "PNG", save_all=True, append_images=blank[1:]), PNG)
    assert extraction.remark == "It is animated: its first picture was read. No words were recognized in it."


def test_every_depth_and_model_of_colours_is_read() -> None:
    deep = Image.fromarray(np.asarray(SIGN.convert("L")).astype(np.uint16) * 100 + 20_000)
    for data, fmt in (
        (saved(deep), PNG),
        (saved(SIGN.convert("1")), PNG),
        (saved(SIGN.convert("P")), PNG),
        (saved(SIGN.convert("CMYK"), "JPEG"), JPG),
    ):
        assert "granite quarry" in text(data, fmt)


def test_a_picture_without_words_is_empty() -> None:
    assert text(saved(Image.effect_noise((400, 300), 90))) == ""
    assert text(saved(Image.new("1", (1, 1)))) == ""


@pytest.mark.parametrize(
    ("data", "fmt", "code", "message"),
    [
        (b"", PNG, "file_corrupt", "no PNG"),
        (b"just words", JPG, "file_corrupt", "no JPG"),
        (saved(SIGN, "JPEG"), PNG, "file_corrupt", "no PNG"),
        (pdf_of([["words"]]), JPG, "file_corrupt", "no JPG"),
        (saved(SIGN)[:900], PNG, "file_corrupt", "damaged"),
        (saved(SIGN, "JPEG")[:-2000], JPG, "file_corrupt", "damaged"),
        (header_of(50_000, 50_000), PNG, "extraction_failed", f"50,000 x 50,000 pixels, and {NAMED}"),
        (header_of(2_000_000_000, 2), PNG, "extraction_failed", f"2,000,000,000 x 2 pixels, and {NAMED}"),
        (header_of(11_000, 10_000, colours=6), PNG, "extraction_failed", "too large to be scaled down"),
        (header_of(MOST_PIXELS + 1, 1), PNG, "file_corrupt", "damaged"),
        (header_of(5_000, 5_000), PNG, "file_corrupt", "damaged"),
        (header_of(0, 0), PNG, "file_corrupt", "damaged"),
    ],
)
def test_a_picture_that_cannot_be_read_says_why(data: bytes, fmt: Format, code: str, message: str) -> None:
    with pytest.raises(ExtractionFailed) as failed:
        read(data, fmt)
    assert failed.value.code == code
    assert message in failed.value.message


@pytest.mark.parametrize("mebibytes", [200, 600])
async def test_a_picture_costs_its_own_job_at_most(tmp_path: Path, mebibytes: int) -> None:
    """The models too stay within the memory limit of the reader."""
    path = tmp_path / "x"
    path.write_bytes(saved(SIGN))
    with pytest.raises(ExtractionFailed, match=f"{mebibytes} MiB") as failed:
        await extract(path, PNG, limits=Limits(ocr_memory_bytes=mebibytes << 20))
    assert failed.value.code == "extraction_memory"


async def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    path = tmp_path / "x"
    path.write_bytes(saved(SIGN))
    with pytest.raises(ExtractionFailed) as failed:
        await extract(path, PNG)
    assert failed.value.code == "ocr_failed"
    assert install_command("ocr") in failed.value.message


@pytest.mark.parametrize("name", ["jpg", "png"])
def test_a_picture_is_encoded_upright_small_and_without_its_metadata(name: str) -> None:
    """It is encoded anew: nothing that follows the picture, or describes it, is in it."""
    exif, sent = Image.Exif(), BytesIO()
    exif[0x0112], exif[0x010E] = 6, "<script>"  # turned by a quarter; a description
    Image.new("RGB", (3_000, 1_500), "red").save(sent, {"jpg": "JPEG"}.get(name, name), exif=exif)
    picture = draw_picture(sent.getvalue() + b"<script>", Context(name, Limits()))
    with Image.open(BytesIO(picture.content)) as opened:
        assert (opened.size, dict(opened.getexif())) == ((700, 1_400), {})
        assert picture.media_type == Image.MIME[opened.format or ""]
    assert b"script" not in picture.content
