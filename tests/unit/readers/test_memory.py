"""Readers share one memory budget, and each may use as much as its file's size allows."""

from __future__ import annotations

import asyncio

import pytest

from kb_readers.memory import MemoryBudget
from kb_readers.model import LEAST_MEMORY, OCR_MEMORY, Limits, Reader, shares
from tests.support.loop_clock import turns

MEBIBYTE, GIBIBYTE = 1 << 20, 1 << 30
BY_SIZE = Reader("module", "function")
BY_OCR = Reader("module", "function", memory_limit="ocr")


@pytest.mark.parametrize(
    ("size", "most"), [(0, 512 * MEBIBYTE), (7_700, 512 * MEBIBYTE + 7_700 * 64), (GIBIBYTE, 2 * GIBIBYTE)]
)
def test_a_file_has_memory_in_proportion_to_its_size(size: int, most: int) -> None:
    assert Limits().memory_for(BY_SIZE, size) == most
    assert Limits().memory_for(BY_OCR, size) == OCR_MEMORY


@pytest.mark.parametrize("total", [5 * GIBIBYTE, 10 * GIBIBYTE])
def test_two_scans_leave_room_for_the_largest_file(total: int) -> None:
    file, pixels = shares(total)
    assert 2 * pixels + file <= total


@pytest.mark.parametrize("total", [64 * MEBIBYTE, GIBIBYTE, 2 * GIBIBYTE])
def test_one_reader_has_no_more_than_all(total: int) -> None:
    file, pixels = shares(total)
    assert (file, pixels) == (min(total, max(LEAST_MEMORY, total * 2 // 5)), min(total, OCR_MEMORY))


async def test_readers_wait_until_there_is_room_in_the_order_of_arrival() -> None:
    budget, running, ends = MemoryBudget(10), [], [asyncio.Event() for _ in range(4)]

    async def read(number: int, size: int) -> None:
        async with budget.reserved(size):
            running.append(number)
            await ends[number].wait()
        running.remove(number)

    reading = [asyncio.create_task(read(number, size)) for number, size in enumerate((4, 6, 7, 1))]
    await turns()
    assert running == [0, 1]
    ends[0].set()
    await turns()
    assert running == [1], "the third needs more, and the fourth waits behind it"
    ends[1].set()
    await turns()
    assert running == [2, 3]
    ends[2].set()
    ends[3].set()
    await asyncio.gather(*reading)


async def test_a_reader_that_fails_or_is_cancelled_gives_its_memory_back() -> None:
    budget = MemoryBudget(10)
    holding = asyncio.Event()

    async def held() -> None:
        async with budget.reserved(10):
            holding.set()
            await asyncio.Event().wait()

    first = asyncio.create_task(held())
    await holding.wait()
    waiting = asyncio.create_task(held())
    await turns()
    waiting.cancel()
    first.cancel()
    await asyncio.gather(first, waiting, return_exceptions=True)
    with pytest.raises(ValueError, match="broken"):
        async with budget.reserved(10):
            raise ValueError("broken")
    async with budget.reserved(10):
        pass
