"""Logging from a thread: a reader of stderr who stops reading stops only the log."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from kb_config.logs import BackgroundHandler

BOUND = 15.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that nobody reads until the test does."""
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def record(message: str) -> logging.LogRecord:
    """A record of that message."""
    return logging.LogRecord("t", logging.INFO, __file__, 1, message, (), None)


def fill(writing: int) -> int:
    """Fill the pipe up; the number of bytes it took."""
    os.set_blocking(writing, False)
    filled = 0
    try:
        while True:
            filled += os.write(writing, b"." * 1024)
    except BlockingIOError:
        os.set_blocking(writing, True)
    return filled


def test_lines_are_written_whole_and_in_order(pipe: tuple[int, int]) -> None:
    """`flush` waits for them."""
    handler = BackgroundHandler(pipe[1])
    for number in range(100):
        handler.emit(record(f"line {number}"))
    handler.flush()
    assert os.read(pipe[0], 1 << 16).decode().splitlines() == [f"line {number}" for number in range(100)]


def test_a_full_pipe_holds_up_nobody_and_what_was_dropped_is_counted(pipe: tuple[int, int]) -> None:
    """The caller goes on; when there is room again, the log says how much is missing."""
    reading, writing = pipe
    filled = fill(writing)
    handler = BackgroundHandler(writing, waiting=10)
    for _ in range(1000):
        handler.emit(record("x"))
    while filled:
        filled -= len(os.read(reading, filled))
    handler.flush()
    handler.emit(record("after"))
    handler.flush()
    rest = os.read(reading, 1 << 16).decode().splitlines()
    assert rest[-1] == "after"
    assert rest[-2].endswith("log lines were dropped: nobody read them")


def test_half_a_surrogate_pair_does_not_end_the_log(pipe: tuple[int, int]) -> None:
    """It is written escaped."""
    handler = BackgroundHandler(pipe[1])
    handler.emit(record("\ud800"))
    handler.emit(record("next"))
    handler.flush()
    assert os.read(pipe[0], 1 << 16).decode().splitlines() == ["\\ud800", "next"]


def test_a_closed_stderr_does_not_end_the_thread() -> None:
    """There is nowhere left to say so, and nothing else is hurt."""
    reading, writing = os.pipe()
    os.close(reading)
    handler = BackgroundHandler(writing)
    handler.emit(record("lost"))
    handler.emit(record("lost too"))
    handler.close()
    os.close(writing)
