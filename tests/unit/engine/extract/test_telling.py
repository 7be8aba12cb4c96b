"""What a child may tell of its pages, which is not to be trusted."""

from __future__ import annotations

import os

import pytest

from kb_engine.extract import ExtractionFailed, PageBegun, PagesCounted
from kb_engine.extract.telling import told_by_a_child


async def test_pages_are_told_in_order_until_the_child_has_ended() -> None:
    """Each once; a record that was begun when the child died is none."""
    pages = [PageBegun(3, 9, 0, 2), PageBegun(7, 9, 1, 2)]
    with told_by_a_child(5) as told:
        os.write(told.writer, b"".join(page.record for page in pages) + b"half")
        told.let_go()
        assert [await told.next(), await told.next(), await told.next()] == [*pages, None]


async def test_the_number_of_pages_is_told_once_before_any_page() -> None:
    """Then a child that tells it again is broken."""
    with told_by_a_child(5) as told:
        os.write(told.writer, PagesCounted(9).record + PageBegun(3, 9, 0, 2).record + PagesCounted(9).record)
        assert [await told.next(), await told.next()] == [PagesCounted(9), PageBegun(3, 9, 0, 2)]
        with pytest.raises(ExtractionFailed):
            await told.next()


@pytest.mark.parametrize(
    "pages",
    [
        [PageBegun(1, 9, 0, 6)],
        [PageBegun(1, 9, 2, 2)],
        [PageBegun(0, 9, 0, 2)],
        [PageBegun(10, 9, 0, 2)],
        [PageBegun(1, 9, 0, 2), PageBegun(2, 9, 0, 2)],
        [PageBegun(1, 9, 1, 2), PageBegun(2, 9, 0, 2)],
    ],
    ids=["too many", "past the end", "page 0", "no such page", "twice", "backwards"],
)
async def test_a_child_that_tells_nonsense_is_broken(pages: list[PageBegun]) -> None:
    """It may not buy itself time by it."""
    with told_by_a_child(5) as told:
        os.write(told.writer, b"".join(page.record for page in pages))
        for page in pages[:-1]:
            assert await told.next() == page
        with pytest.raises(ExtractionFailed) as failed:
            await told.next()
    assert failed.value.code == "extraction_failed"


async def test_a_child_that_tells_without_end_takes_no_memory() -> None:
    with told_by_a_child(5) as told:
        os.set_blocking(told.writer, False)
        assert os.write(told.writer, bytes(1 << 16)) > 0
        with pytest.raises(ExtractionFailed):
            await told.next()
