"""How far a job says that it is."""

from __future__ import annotations

import pytest

from kb_engine.extract import PageBegun
from kb_engine.ingest.steps import Steps

Told = list[tuple[str, int, int]]


async def steps_of(pages: int, passages: int) -> Told:
    """What is told of a file with so many pages by OCR, and so many passages."""
    told: Told = []

    async def note(step: str, done: int, total: int) -> None:
        told.append((step, done, total))

    steps = Steps(note)
    await steps.extracting()
    for number in range(pages):
        await steps.page(PageBegun(number + 1, pages, number, pages))
    await steps.splitting()
    for number in range(0, passages, 4):
        await steps.embedding(number, passages)
    await steps.storing(passages)
    return told


@pytest.mark.requirement("N74")
async def test_pages_read_by_ocr_are_the_steps_of_their_job() -> None:
    """In words that name the page."""
    assert await steps_of(2, 5) == [
        ("Extracting text", 0, 1),
        ("Processing page 1 of 2", 1, 5),
        ("Processing page 2 of 2", 2, 5),
        ("Splitting into chunks", 3, 5),
        ("Generating embeddings", 3, 5),
        ("Generating embeddings", 3, 5),
        ("Storing", 4, 5),
    ]


@pytest.mark.parametrize(("pages", "passages"), [(0, 0), (0, 9), (1, 0), (3, 400), (400, 3)])
async def test_progress_never_falls(pages: int, passages: int) -> None:
    """Nor is it whole before the job is."""
    shares = [done / total for _, done, total in await steps_of(pages, passages)]
    assert shares == sorted(shares)
    assert shares[-1] < 1
