"""The simulator reads files by the readers of the engine, in a child, and no pictures."""

from __future__ import annotations

import pytest

from kb_contracts.api.formats import FORMATS
from kb_readers import ExtractionFailed, readers
from kb_simulator.engine.handlers import extract
from tests.support.documents import docx_of, large_pdf, looping_pdf, sentence_of_page
from tests.unit.simulator.running import Running


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("txt", b"# granite", "# granite"),
        ("html", b"<h1>Stones</h1><p>granite</p>", "# Stones\n\ngranite"),
        ("svg", b'<svg xmlns="http://www.w3.org/2000/svg"><text>granite</text></svg>', "granite"),
        ("docx", docx_of([("Heading2", "Stones"), ("", "granite")]), "## Stones\n\ngranite"),
    ],
)
async def test_a_file_gives_its_text(name: str, data: bytes, text: str) -> None:
    """As one page without a number."""
    assert [page.text for page in (await extract(data, FORMATS[name])).pages] == [text]


async def test_a_pdf_has_pages() -> None:
    """Numbered from 1."""
    found = await extract(large_pdf(2), FORMATS["pdf"])
    assert found.page_count == 2
    assert sentence_of_page(2) in found.pages[1].text


@pytest.mark.parametrize(("name", "force_ocr"), [("jpg", False), ("png", False), ("pdf", True)])
async def test_nothing_is_read_by_ocr(name: str, force_ocr: bool) -> None:
    """As by an engine that lacks the extra for it."""
    with pytest.raises(ExtractionFailed) as failed:
        await extract(large_pdf(1), FORMATS[name], force_ocr=force_ocr)
    assert failed.value.code == "ocr_failed"


async def test_a_hostile_file_fails_alone() -> None:
    """What reads it is another process."""
    with pytest.raises(ExtractionFailed) as failed:
        await extract(looping_pdf(), FORMATS["pdf"])
    assert failed.value.code == "file_corrupt"


async def test_a_format_whose_package_is_missing_is_refused_when_it_comes(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the package to install; no job comes of it."""
    monkeypatch.setattr(readers, "_PACKAGES", {"pdf": "a_package_that_is_not_there"})
    answer = await running.http.post("/api/v1/jobs", files={"file": ("a.pdf", large_pdf(1))})
    assert answer.json()["code"] == "unsupported_format"
    assert "a_package_that_is_not_there" in answer.json()["detail"]
