"""Progress reports of a child process, which is not trusted."""

from __future__ import annotations

import os

import pytest

from kb_readers.child import open_progress_pipe
from kb_readers.failures import ExtractionFailed
from kb_readers.model import PageBegun, PagesCounted


async def test_pages_are_reported_in_order_until_the_child_has_ended() -> None:
    pages = [PageBegun(3, 9, 0, 2), PageBegun(7, 9, 1, 2)]
    with open_progress_pipe(5) as pipe:
        os.write(pipe.writer, b"".join(page.record for page in pages) + b"half")
        pipe.close_writer()
        assert [await pipe.next(), await pipe.next(), await pipe.next()] == [*pages, None]


async def test_the_number_of_pages_is_reported_once_before_any_page() -> None:
    with open_progress_pipe(5) as pipe:
        os.write(pipe.writer, PagesCounted(9).record + PageBegun(3, 9, 0, 2).record + PagesCounted(9).record)
        assert [await pipe.next(), await pipe.next()] == [PagesCounted(9), PageBegun(3, 9, 0, 2)]
        with pytest.raises(ExtractionFailed):
            await pipe.next()


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
async def test_a_child_that_reports_nonsense_is_broken(pages: list[PageBegun]) -> None:
    """Invalid reports do not extend its time."""
    with open_progress_pipe(5) as pipe:
        os.write(pipe.writer, b"".join(page.record for page in pages))
        for page in pages[:-1]:
            assert await pipe.next() == page
        with pytest.raises(ExtractionFailed) as failed:
            await pipe.next()
    assert failed.value.code == "extraction_failed"


async def test_a_child_that_reports_without_end_takes_no_memory() -> None:
    """Its first invalid report ends it."""
    with open_progress_pipe(5) as pipe:
        os.set_blocking(pipe.writer, False)
        assert os.write(pipe.writer, bytes(1 << 16)) > 0
        with pytest.raises(ExtractionFailed):
            await pipe.next()
