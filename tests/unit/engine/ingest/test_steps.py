"""The progress of a job."""

from __future__ import annotations

import pytest

from kb_engine.ingest.pipeline import Steps
from kb_readers.model import PageBegun, PagesCounted

Told = list[tuple[str, int, int]]


async def steps_of(pages: int, passages: int, text_pages: int = 0) -> Told:
    told: Told = []

    async def note(step: str, done: int, total: int) -> None:
        told.append((step, done, total))

    steps = Steps(note)
    await steps.extracting()
    if text_pages:
        await steps.page(PagesCounted(text_pages))
    for number in range(pages):
        await steps.page(PageBegun(number + 1, pages, number, pages))
    await steps.splitting()
    for number in range(0, passages, 4):
        await steps.embedding(number, passages, 1 + number * text_pages // passages)
    await steps.storing(passages)
    return told


@pytest.mark.requirement("N74")
async def test_pages_read_by_ocr_are_the_steps_of_their_job() -> None:
    assert await steps_of(2, 5) == [
        ("Extracting text", 0, 1),
        ("Processing page 1 of 2", 1, 5),
        ("Processing page 2 of 2", 2, 5),
        ("Splitting into chunks", 3, 5),
        ("Generating embeddings", 3, 5),
        ("Generating embeddings", 3, 5),
        ("Storing", 4, 5),
    ]


async def test_the_pages_of_a_text_are_done_when_they_have_their_vectors() -> None:
    """The pages are known before their text, so that progress moves during the extraction."""
    assert await steps_of(0, 10, text_pages=5) == [
        ("Extracting text", 0, 1),
        ("Extracting text", 1, 8),
        ("Splitting into chunks", 2, 8),
        ("Generating embeddings", 2, 8),
        ("Generating embeddings", 4, 8),
        ("Generating embeddings", 6, 8),
        ("Storing", 7, 8),
    ]


@pytest.mark.parametrize("text_pages", [0, 1, 400])
@pytest.mark.parametrize(("pages", "passages"), [(0, 0), (0, 9), (1, 0), (3, 400), (400, 3)])
async def test_progress_never_falls(pages: int, passages: int, text_pages: int) -> None:
    text_pages = max(pages, text_pages) if text_pages else 0  # pages read by OCR are among them
    shares = [done / total for _, done, total in await steps_of(pages, passages, text_pages)]
    assert shares == sorted(shares)
    assert shares[-1] < 1
