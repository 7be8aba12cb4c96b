"""Pages of a PDF that are read by OCR: their selection, the results, and limits of their cost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from PIL import ImageOps

from kb_config.installing import install_command
from kb_contracts.api.formats import FORMATS
from kb_engine.extract import extract
from kb_engine.extract.scans import read_scans
from kb_readers.failures import ExtractionFailed
from kb_readers.model import Context, Extraction, Limits, Page, PageBegun, PagesCounted, Progress
from kb_readers.remarks import pages_listed
from tests.support.documents import LOCKED_TRAILER
from tests.support.loop_clock import advance_loop
from tests.support.patience import ANSWER_SECONDS
from tests.support.pdfs import pdf_of, text_of_page
from tests.support.scans import Sheet, drawn, pdf_of_sheets, picture, scan, shown, words

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("loaded_models")]

PDF = FORMATS["pdf"]
LONG = " ".join(text_of_page(1, seed=7)[:3]).replace("(", "").replace(")", "")
STAMP = "Exhibit 7"
SLOW = pdf_of_sheets([Sheet(shown() * 200_000, (picture(drawn(["The granite quarry"])),))])
"""A page that draws its picture 200,000 times: quick to inspect, but minutes to draw."""
MIXED = pdf_of_sheets(
    [
        Sheet(words(LONG)),
        scan(["The granite quarry", "opens at seven"]),
        Sheet(),
        scan(["Feldspar and zircon", "are stored in the shed"], STAMP),
        Sheet(words("A last line")),
        scan([]),
    ]
)


async def read(
    path: Path,
    data: bytes,
    limits: Limits | None = None,
    *,
    force_ocr: bool = False,
    reported: list[Progress] | None = None,
) -> Extraction:
    path.write_bytes(data)

    async def note(page: Progress) -> None:
        if reported is not None:
            reported.append(page)

    return await extract(path, PDF, force_ocr=force_ocr, limits=limits or Limits(), on_progress=note)


async def failure(
    path: Path, data: bytes, limits: Limits | None = None, *, force_ocr: bool = False
) -> ExtractionFailed:
    with pytest.raises(ExtractionFailed) as failed:
        await read(path, data, limits, force_ocr=force_ocr)
    assert failed.value.message.endswith(".")
    return failed.value


def unread(data: bytes) -> Extraction:
    return read_scans(data, Context("pdf", Limits()))


async def test_a_pdf_of_texts_and_scans_gives_both(tmp_path: Path) -> None:
    reported: list[Progress] = []
    extraction = await read(tmp_path / "x", MIXED, reported=reported)
    assert [page.number for page in extraction.pages] == [1, 2, 3, 4, 5, 6]
    texts = [page.text for page in extraction.pages]
    assert texts[0].split()[:4] == LONG.split()[:4]
    assert texts[1] == "The granite quarry\nopens at seven"
    assert texts[3].startswith("Feldspar and zircon\nare stored in the shed")
    assert (texts[2], texts[4], texts[5]) == ("", "A last line", "")
    assert (extraction.method, extraction.remark) == ("mixed_extraction", None)
    assert reported == [PagesCounted(6), PageBegun(2, 6, 0, 3), PageBegun(4, 6, 1, 3), PageBegun(6, 6, 2, 3)]


async def test_annotations_of_a_scan_are_kept_with_its_recognised_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long annotations do not count as text of the page."""
    sheet = scan(["The granite quarry"])
    note = b"/Annots [<< /Type /Annot /Subtype /Text /Rect [9 9 29 29] /Contents (%b) >>]" % LONG.encode()
    data = pdf_of_sheets([Sheet(sheet.content, sheet.named, sheet.entries + note), Sheet(words(LONG))])
    extraction = await read(tmp_path / "x", data)
    assert extraction.pages[0].text == f"The granite quarry\n\n{' '.join(LONG.split())}"
    assert extraction.method == "mixed_extraction"
    monkeypatch.setattr("kb_engine.extract._OCR_PACKAGE", "a_package_that_is_not_there")
    assert ((await read(tmp_path / "x", data)).remark or "").startswith("No text was found on page 1.")


def test_a_remark_on_the_text_is_kept_when_scans_are_read() -> None:
    known = Extraction([Page(1, "a")], None, "text_extraction", "application/pdf", "It is damaged.")
    extraction = read_scans(pdf_of([["a"]]), Context("pdf", Limits(), known=known))
    assert extraction == known


@pytest.mark.requirement("N8")
async def test_forced_ocr_reads_the_picture_of_a_page_instead_of_its_text(tmp_path: Path) -> None:
    """For pages whose text differs from their picture, for example; the title still comes from the file."""
    page = scan(["The granite quarry"], LONG)
    page = Sheet(page.content, [*page.named, b"<< /Title (Stones) >>"])
    lying = pdf_of_sheets([page], trailer=b"/Info 7 0 R")
    plain = await read(tmp_path / "x", lying)
    assert plain.pages[0].text.split()[:4] == LONG.split()[:4]
    assert plain.method == "text_extraction"
    forced = await read(tmp_path / "x", lying, force_ocr=True)
    assert forced.pages[0].text.startswith("The granite quarry")
    assert (forced.method, forced.title) == ("image_analysis", "Stones")


def test_blank_pages_are_many_and_cost_little() -> None:
    assert unread(pdf_of_sheets([Sheet()] * 10_000)).method == "image_analysis"
    grey = Sheet(b"0.5 g 0 0 595 842 re f")
    extraction = unread(pdf_of_sheets([grey, Sheet()]))
    assert ([page.text for page in extraction.pages], extraction.method) == (["", ""], "image_analysis")


def test_a_lone_line_on_a_page_is_seen() -> None:
    (page,) = unread(pdf_of([["zircon and feldspar"]])).pages
    assert page.text == "zircon and feldspar"


def test_a_page_that_lies_is_turned_before_it_is_read() -> None:
    """Each page by itself; illegible pages are listed by number."""
    lines = ["The granite quarry opens at seven", "on every second Monday in summer"]
    upright = drawn(lines, (700, 400))
    sheets = [upright, upright.rotate(90, expand=True), ImageOps.mirror(upright)]
    data = pdf_of_sheets(
        [Sheet(shown(*each.size), (picture(each),), b"/MediaBox [0 0 %d %d]" % each.size) for each in sheets]
    )
    extraction = unread(data)
    assert [page.text for page in extraction.pages] == ["\n".join(lines)] * 2 + [""]
    assert extraction.remark is not None
    assert extraction.remark.startswith("On page 3 there are lines that could not be read")


@pytest.mark.parametrize("force_ocr", [False, True])
async def test_a_thousand_scans_end_their_own_job_at_once(tmp_path: Path, force_ocr: bool) -> None:
    reported: list[Progress] = []
    data = pdf_of_sheets([scan(["The granite quarry"])] * 1_000)
    with pytest.raises(ExtractionFailed, match=r"1,000 pages .* 500 are the most") as failed:
        await read(tmp_path / "x", data, force_ocr=force_ocr, reported=reported)
    assert failed.value.code == "extraction_failed"
    assert not [reading for reading in reported if isinstance(reading, PageBegun)]


async def test_a_page_that_takes_too_long_to_recognize_ends_its_own_job(tmp_path: Path) -> None:
    failed = await failure(tmp_path / "x", SLOW, Limits(ocr_seconds=0.5), force_ocr=True)
    assert failed.code == "extraction_timeout"
    assert "page 1 of 1" in failed.message
    assert "0.5 seconds" in failed.message


async def test_a_page_that_takes_for_ever_ends_its_own_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, advance, path = Limits(wall_seconds=ANSWER_SECONDS), advance_loop(monkeypatch), tmp_path / "x"
    path.write_bytes(SLOW)

    async def begun(page: Progress) -> None:
        assert isinstance(page, PageBegun)
        asyncio.get_running_loop().call_soon(advance, ANSWER_SECONDS)

    with pytest.raises(ExtractionFailed, match=f"Page 1 .*{ANSWER_SECONDS:g} seconds") as failed:
        await extract(path, PDF, force_ocr=True, limits=limits, on_progress=begun)
    assert failed.value.code == "extraction_timeout"


async def test_time_in_which_a_report_waits_is_no_time_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose database is away for longer than a page's time limit does not fail."""
    (tmp_path / "x").write_bytes(pdf_of_sheets([scan([])] * 2))

    limits, advance = Limits(wall_seconds=ANSWER_SECONDS), advance_loop(monkeypatch)

    async def away(_page: Progress) -> None:
        advance(limits.wall_seconds + 1)
        for _ in range(3):  # turns of the loop in which a time-out would fire
            await asyncio.sleep(0)

    extraction = await extract(tmp_path / "x", PDF, limits=limits, force_ocr=True, on_progress=away)
    assert len(extraction.pages) == 2


async def test_ocr_keeps_to_the_memory_of_a_reader(tmp_path: Path) -> None:
    data = pdf_of_sheets([scan(["The granite quarry"])])
    failed = await failure(tmp_path / "x", data, Limits(ocr_memory_bytes=600 << 20))
    assert failed.code == "extraction_memory"


async def test_a_failed_figure_does_not_cost_the_text(tmp_path: Path) -> None:
    """Text on at least half of the pages is kept, and the missing pages are reported with the reason."""
    data = pdf_of_sheets([Sheet(words(LONG)), scan(["a"]), scan(["b"]), Sheet(words(LONG))])
    kept = await read(tmp_path / "x", data, Limits(ocr_pages=1))
    assert kept.method == "text_extraction"
    assert kept.remark is not None
    assert kept.remark.startswith("Pages 2 and 3 could not be read by OCR. 2 pages would have to be read")
    data = pdf_of_sheets([Sheet(words(LONG)), scan(["a"]), scan(["b"])])
    assert (await failure(tmp_path / "x", data, Limits(ocr_pages=1))).code == "extraction_failed"


async def test_without_the_extra_a_scan_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kb_engine.extract._OCR_PACKAGE", "a_package_that_is_not_there")
    reported: list[Progress] = []
    empty = await read(tmp_path / "x", pdf_of_sheets([scan(["The granite quarry"])] * 2), reported=reported)
    assert ([page.text for page in empty.pages], empty.method) == (["", ""], "text_extraction")
    assert reported == [PagesCounted(2)]
    assert empty.remark is not None
    assert empty.remark.startswith("No text was found on its pages (2).")
    assert install_command("ocr") in empty.remark
    mixed = await read(tmp_path / "x", MIXED)
    assert mixed.remark is not None
    assert mixed.remark.startswith("No text was found on pages 2, 3 and 6.")
    whole = await read(tmp_path / "x", pdf_of([["Short"]]))
    assert whole.remark is None
    failed = await failure(tmp_path / "x", MIXED, force_ocr=True)
    assert failed.code == "ocr_failed"
    assert "a_package_that_is_not_there" in failed.message


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (MIXED[:-40], "file_corrupt", "cut off"),
        (pdf_of([["secret"]], trailer=LOCKED_TRAILER), "file_encrypted", "password"),
    ],
    ids=["cut off", "locked"],
)
def test_a_file_that_cannot_be_shown_says_why(data: bytes, code: str, message: str) -> None:
    with pytest.raises(ExtractionFailed, match=message) as failed:
        unread(data)
    assert failed.value.code == code


@pytest.mark.parametrize("name", ["txt", "html", "pdf", "png"])
async def test_a_file_that_is_not_there_is_the_engines_fault(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        await extract(tmp_path / "none", FORMATS[name])


def test_pages_are_listed_as_people_do() -> None:
    assert pages_listed([3]) == "Page 3"
    assert pages_listed([7, 3]) == "Pages 3 and 7"
    assert pages_listed(range(1, 9)) == "Pages 1, 2, 3, 4, 5, 6, 7 and 8"
    assert pages_listed(range(1, 1_501)) == "Pages 1, 2, 3, 4, 5, 6, 7 and 1,493 more"
