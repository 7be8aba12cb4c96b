"""The pipe through which a child reports its progress: how many pages there are, and each page of OCR."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

from kb_readers.failures import crashed
from kb_readers.messages import RECORD_BYTES, PageBegun, PagesCounted, Progress

_READ_BYTES = 4096
_MOST_BYTES = 1 << 16  # that wait to be looked at


class ProgressPipe:
    """The parent's end. `writer` is the child's descriptor; close it here once the child has it."""

    def __init__(self, reader: int, writer: int, most_pages: int) -> None:
        self._reader = reader
        self._writer: int | None = writer
        self._most_pages = most_pages
        self._loop = asyncio.get_running_loop()
        self._data = b""
        self._ended = False
        self._counted = False
        self._last = -1
        self._arrived = asyncio.Event()
        self._loop.add_reader(reader, self._read)

    @property
    def writer(self) -> int:
        """The child's end."""
        assert self._writer is not None, "it was closed"
        return self._writer

    def close_writer(self) -> None:
        """Close the child's end in this process, so that the pipe ends when the child does."""
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None

    def close(self) -> None:
        """Close both ends."""
        self.close_writer()
        self._loop.remove_reader(self._reader)
        os.close(self._reader)

    async def next(self) -> Progress | None:
        """The number of pages, or the next page; None when the child has closed its end.

        Raises ExtractionFailed when a record makes no sense, or would keep the child alive for ever.
        """
        while len(self._data) < RECORD_BYTES:
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        record, self._data = self._data[:RECORD_BYTES], self._data[RECORD_BYTES:]
        page = PageBegun.of(record)
        if page == (0, page.pages, 0, 0) and page.pages and not self._counted and self._last < 0:
            self._counted = True
            return PagesCounted(page.pages)
        if not (self._last < page.done < page.wanted <= self._most_pages and 0 < page.number <= page.pages):
            raise crashed("it reported a page that does not exist")
        self._last = page.done
        return page

    def _read(self) -> None:
        data = os.read(self._reader, _READ_BYTES)
        if not data:
            self._ended = True
            self._loop.remove_reader(self._reader)
        self._data = (self._data + data)[:_MOST_BYTES]
        self._arrived.set()


@contextmanager
def open_progress_pipe(most_pages: int) -> Iterator[ProgressPipe]:
    """A pipe, closed at the end. A child may report `most_pages` pages of OCR."""
    pipe = ProgressPipe(*os.pipe(), most_pages)
    try:
        yield pipe
    finally:
        pipe.close()
