"""Structured logs: JSON lines without secrets, written by a thread that never blocks a caller."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from kb_config import logs
from kb_config.logs import BackgroundHandler, JsonFormatter, configure_logging
from tests.support.patience import ANSWER_SECONDS


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    names = ("aiohttp", "anyio", "asyncio", "mcp")
    before = (root.handlers[:], root.level, [logging.getLogger(name).level for name in names])
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    for name, level in zip(names, before[2], strict=True):
        logging.getLogger(name).setLevel(level)


def formatted(message: str, *, secrets: tuple[str, ...] = (), **given: Any) -> dict[str, Any]:
    fault = given.pop("fault", None)
    record = logging.LogRecord(
        "kb.test",
        logging.WARNING,
        __file__,
        1,
        message,
        (),
        (type(fault), fault, fault.__traceback__) if fault else None,
    )
    record.__dict__.update(given)
    line = JsonFormatter(secrets).format(record)
    assert "\n" not in line
    read: dict[str, Any] = json.loads(line)
    return read


def test_a_record_says_when_how_bad_and_what() -> None:
    entry = formatted("Watch out")
    assert datetime.fromisoformat(entry["timestamp"]).utcoffset() is not None
    assert entry["timestamp"].endswith("Z")
    assert entry["level"] == "warn"
    assert entry["message"] == "Watch out"


def test_fields_stand_beside_and_never_in_place_of_the_standing_ones() -> None:
    entry = formatted("x", tool="kb_search", response_time=1.5, level="none")
    assert (entry["tool"], entry["response_time"], entry["level"]) == ("kb_search", 1.5, "warn")


def test_a_secret_is_struck_out_wherever_it_turns_up() -> None:
    fault = ValueError("key s3cret-key")
    entry = formatted("s3cret-key", secrets=("s3cret-key", ""), url="x?s3cret-key", fault=fault)
    assert "s3cret" not in json.dumps(entry)
    assert entry["message"] == "***"


def test_a_secret_too_short_to_be_one_does_not_eat_the_log() -> None:
    """A key of one letter would blank every word."""
    assert formatted("banana", secrets=("a",))["message"] == "banana"


def _raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - the test needs its traceback
        return caught


def test_an_exception_tells_where_and_only_the_start_of_its_words() -> None:
    """Only the first line is kept, up to 200 characters, because the rest often quotes the input."""
    entry = formatted("x", fault=_raised(ValueError("a" * 300 + "\nthe whole document")))
    told = entry["exception"]
    assert told["type"] == "ValueError"
    assert told["message"] == "a" * 200
    assert "_raised" in told["traceback"][-1]


def test_the_cause_of_an_exception_is_told_too() -> None:
    fault = RuntimeError("outer")
    fault.__cause__ = KeyError("inner")
    assert formatted("x", fault=fault)["exception"]["cause"]["type"] == "KeyError"


@pytest.mark.parametrize("value", ["\ud800", 2**70, {1, 2}, object(), b"\xff", float("nan")])
def test_an_odd_value_still_makes_a_line(value: object) -> None:
    assert formatted("odd", value=value)["level"] in ("warn", "'warn'")


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", "dit"), ("info", "it"), ("warn", "t"), ("warning", "t"), ("ERROR", "")]
)
def test_the_level_decides_what_is_written(level: str, shown: str) -> None:
    stream = io.StringIO()
    configure_logging(level, part="server", stream=stream)
    log = logging.getLogger("kb_server.test")
    log.debug("d")
    log.info("i")
    log.warning("t")
    assert "".join(json.loads(line)["message"] for line in stream.getvalue().splitlines()) == shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_at_a_terminal_gets_words() -> None:
    """Time of day, level, message and fields, without secrets and without ids for programs."""
    stream = Terminal()
    configure_logging("info", part="server", secrets=("s3cret-key",), stream=stream)
    fields = {"port": 3000, "key": "s3cret-key", "correlation_id": "0ff8", "user_agent": "x"}
    logging.getLogger("kb_server.test").warning("Listening", extra=fields)
    moment, words = stream.getvalue().split(" ", 1)
    assert datetime.strptime(moment, "%H:%M:%S").second >= 0
    assert words == "server warn  Listening port=3000 key=***\n"


def test_a_line_for_a_person_cannot_steer_the_terminal() -> None:
    stream = Terminal()
    configure_logging("info", part="server", stream=stream)
    logging.getLogger("kb_server.test").info("a\nb", extra={"file": "\x1b[2J\u202e\ud800\x9b"})
    assert stream.getvalue().endswith("a\\nb file=\\x1b[2J\\u202e\\ud800\\x9b\n")


def test_a_person_is_told_what_was_raised_and_where() -> None:
    stream = Terminal()
    configure_logging("info", part="server", stream=stream)
    logging.getLogger("kb_server.test").error("Broke", exc_info=_raised(ValueError("bad")))
    (line,) = stream.getvalue().splitlines()
    assert "Broke exception=ValueError: bad (" in line
    assert line.endswith(" _raised)")


def test_a_level_nobody_knows_is_refused() -> None:
    with pytest.raises(KeyError):
        configure_logging("loud", part="server")


def test_libraries_log_warnings_and_errors_only() -> None:
    """Their debug lines quote whole messages."""
    stream = io.StringIO()
    configure_logging("debug", part="server", stream=stream)
    logging.getLogger("mcp.server.runner").debug("a whole document")
    logging.getLogger("aiohttp.access").info("GET /upload/one-time-token")
    assert stream.getvalue() == ""


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A pipe for a log; `flush` waits until the writer is done."""
    monkeypatch.setattr(logs, "_FLUSH_SECONDS", ANSWER_SECONDS)
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("t", logging.INFO, __file__, 1, message, (), None)


def fill(writing: int) -> int:
    """Fill the pipe; return the number of bytes written."""
    os.set_blocking(writing, False)
    filled = 0
    try:
        while True:
            filled += os.write(writing, b"." * 1024)
    except BlockingIOError:
        os.set_blocking(writing, True)
    return filled


def test_lines_are_written_whole_and_in_order(pipe: tuple[int, int]) -> None:
    handler = BackgroundHandler(pipe[1])
    for number in range(100):
        handler.emit(record(f"line {number}"))
    handler.flush()
    assert os.read(pipe[0], 1 << 16).decode().splitlines() == [f"line {number}" for number in range(100)]


def test_a_full_log_pipe_drops_lines_and_counts_them(pipe: tuple[int, int]) -> None:
    """The caller continues; once there is room, the log states the number of dropped lines."""
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
    assert rest[-2].endswith("log lines were dropped: the log was not read")


def test_half_a_surrogate_pair_does_not_end_the_log(pipe: tuple[int, int]) -> None:
    handler = BackgroundHandler(pipe[1])
    handler.emit(record("\ud800"))
    handler.emit(record("next"))
    handler.flush()
    assert os.read(pipe[0], 1 << 16).decode().splitlines() == ["\\ud800", "next"]


def test_a_closed_stderr_does_not_end_the_thread() -> None:
    """The loss cannot be reported, and has no other effect."""
    reading, writing = os.pipe()
    os.close(reading)
    handler = BackgroundHandler(writing)
    handler.emit(record("lost"))
    handler.emit(record("lost too"))
    handler.close()
    os.close(writing)
