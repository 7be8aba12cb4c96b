"""The toolset over one text file: every state of the file, and the results of the two tools."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kb_config.logs import fields_of
from kb_server.schema import input_schema, output_schema
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Call, NoArguments, Toolset
from kb_server.toolsets import offered
from kb_server.toolsets.textfile import (
    PLACEHOLDER,
    GetKbContentTool,
    GetKbInfoTool,
    SourceError,
    Text,
    TextFile,
    build,
    build_over,
)

SAMPLE = Path(__file__).parents[5] / "examples" / "azure-managed-grafana.txt"
MODIFIED = 1_790_000_000.25


@dataclass
class Counted:
    """A source that counts its reads, and raises `outcome` if it is an exception."""

    outcome: Text | Exception
    name: str = "memory"
    reads: int = field(default=0)

    def read(self) -> Text:
        self.reads += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def over_file(path: Path | str, description: str = "") -> Toolset:
    return build(Services(ServerSettings(text_file=str(path), text_description=description)))


async def call(toolset: Toolset, tool: str, log: dict[str, Any] | None = None) -> dict[str, Any]:
    """Start the toolset if necessary, and return the JSON result of `tool`."""
    async with toolset.lifespan():
        result = await toolset.by_name()[tool].run(NoArguments(), Call(log={} if log is None else log))
    answer: dict[str, Any] = msgspec.to_builtins(result)
    return answer


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_bytes("Größe\r\n€\n".encode())
    os.utime(path, (MODIFIED, MODIFIED))
    return path


@pytest.mark.requirement("F1", "F35", "F39", "F46")
def test_there_are_exactly_two_tools_and_none_of_them_searches() -> None:
    """Clients depend on the protocol ids: a rename, or a third tool, fails here."""
    assert list(over_file("").by_name()) == ["get_kb_info", "get_kb_content"]


@pytest.mark.requirement("F1")
@pytest.mark.parametrize("tool", [GetKbInfoTool, GetKbContentTool])
def test_the_tools_take_no_input(tool: type[GetKbInfoTool | GetKbContentTool]) -> None:
    assert input_schema(tool.arguments) == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }


@pytest.mark.requirement("F2", "F3")
async def test_info_of_a_file_with_content_has_every_figure(notes: Path) -> None:
    assert await call(over_file(notes, "Sizes"), "get_kb_info") == {
        "status": "available",
        "info": {
            "fileSizeBytes": 13,
            "contentLength": 9,
            "isAvailable": True,
            "description": "Sizes",
            "lastModified": "2026-09-21T14:13:20.250Z",
        },
    }


@pytest.mark.requirement("F6", "F9", "F10", "F13", "F23")
async def test_content_is_the_whole_file_unmodified(notes: Path) -> None:
    assert await call(over_file(notes), "get_kb_content") == {
        "status": "ok",
        "contentLength": 9,
        "content": "Größe\r\n€\n",
    }


@pytest.mark.requirement("F13")
async def test_a_byte_order_mark_is_a_character_like_any_other(tmp_path: Path) -> None:
    """The content is unmodified, so it is neither dropped nor added."""
    path = tmp_path / "marked.txt"
    path.write_bytes(b"\xef\xbb\xbfa")
    answer = await call(over_file(path), "get_kb_content")
    assert (answer["content"], answer["contentLength"]) == ("\ufeffa", 2)


@pytest.mark.requirement("F5", "F7", "F11", "F16")
async def test_a_file_without_bytes_is_empty_and_available(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.touch()
    toolset = over_file(path)
    info = await call(toolset, "get_kb_info")
    assert (info["status"], info["info"]["fileSizeBytes"], info["info"]["contentLength"]) == (
        "available",
        0,
        0,
    )
    assert await call(toolset, "get_kb_content") == {"status": "empty", "contentLength": 0, "content": ""}


ODD: dict[str, Callable[[Path], Any]] = {
    "does not exist.": Path.absolute,
    "is not UTF-8: the byte at offset 2 does not belong there.": lambda path: path.write_bytes(
        b"Gr\xf6\xdfe"
    ),
    "is not a regular file.": Path.mkdir,
    "is not a regular file. ": os.mkfifo,
    "could not be read: Too many levels of symbolic links.": lambda path: path.symlink_to(path),
}
"""Files by error text. A plain open of a pipe would wait for a writer forever."""


@pytest.mark.requirement("F4", "F8", "F12", "F19", "F22")
@pytest.mark.parametrize("words", ODD)
async def test_an_unreadable_file_is_unavailable_with_a_reason(tmp_path: Path, words: str) -> None:
    """The message names the file without its folder; characters are never replaced silently."""
    path = tmp_path / "odd.txt"
    ODD[words](path)
    toolset = over_file(path, "Sizes")
    assert await call(toolset, "get_kb_info") == {
        "status": "unavailable",
        "info": {
            "fileSizeBytes": 0,
            "contentLength": 0,
            "isAvailable": False,
            "description": "Sizes",
            "lastModified": None,
        },
    }
    error = f"odd.txt {words.rstrip()}"
    assert await call(toolset, "get_kb_content") == {"status": "error", "error": error}


@pytest.mark.requirement("F15", "F34")
@pytest.mark.parametrize("path", ["", "/dev/zero", "a\0b", "~nobody-of-this-name/x", "x" * 5000, "/"])
async def test_no_path_crashes_the_tools_and_without_one_they_say_how_to_name_a_file(path: str) -> None:
    toolset = over_file(path)
    assert (await call(toolset, "get_kb_info"))["status"] == "unavailable"
    answer = await call(toolset, "get_kb_content")
    assert answer["status"] == "error"
    assert answer["error"]
    assert path or "KB_TEXT_FILE" in answer["error"]


@pytest.mark.requirement("F17", "F22")
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "may not be read: permission denied"),
        (errno.EAGAIN, "could not be read"),
        (errno.EIO, "could not be read"),
    ],
)
async def test_a_failure_in_the_middle_of_reading_is_an_error(
    notes: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def fail(_descriptor: int, _count: int) -> bytes:
        raise OSError(number, os.strerror(number))

    toolset = over_file(notes)
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", fail)
        answer = await call(toolset, "get_kb_content")
    assert answer["status"] == "error"
    assert words in answer["error"]


@pytest.mark.requirement("F17", "F20", "F21")
async def test_a_failure_at_the_start_stays_until_a_restart(tmp_path: Path) -> None:
    """A file that appears later is not read, so that the result stays the same."""
    path = tmp_path / "late.txt"
    toolset = over_file(path)
    first = await call(toolset, "get_kb_content")
    path.write_text("late")
    assert await call(toolset, "get_kb_content") == first
    assert (await call(over_file(path), "get_kb_content"))["status"] == "ok"


@pytest.mark.requirement("F20", "F21")
async def test_content_is_what_the_file_held_at_the_start(notes: Path) -> None:
    toolset = over_file(notes)
    before = [await call(toolset, "get_kb_info"), await call(toolset, "get_kb_content")]
    notes.write_text("changed")
    assert [await call(toolset, "get_kb_info"), await call(toolset, "get_kb_content")] == before
    notes.unlink()
    assert [await call(toolset, "get_kb_info"), await call(toolset, "get_kb_content")] == before


async def test_a_file_over_the_bound_is_refused_before_it_fills_the_memory(notes: Path) -> None:
    assert TextFile(str(notes), max_bytes=13).read().size == 13
    with pytest.raises(SourceError, match=r"notes\.txt is too large: at most 12 bytes"):
        TextFile(str(notes), max_bytes=12).read()


@pytest.mark.requirement("F44", "F45")
async def test_any_source_of_one_text_can_stand_behind_the_tools() -> None:
    """The tools know the interface only, not files; the source is read once, in another thread."""
    source = Counted(Text("remote", 6, datetime(2026, 1, 2, tzinfo=UTC)))
    toolset = build_over(source, "A text from elsewhere")
    assert (await call(toolset, "get_kb_content"))["content"] == "remote"
    assert (await call(toolset, "get_kb_info"))["info"]["lastModified"] == "2026-01-02T00:00:00.000Z"
    assert source.reads == 1


@pytest.mark.requirement("F8", "F34")
async def test_a_source_that_breaks_in_an_unforeseen_way_is_an_error_without_its_words() -> None:
    """The message is logged; the agent only learns that there is no text."""
    answer = await call(build_over(Counted(RuntimeError("secret path")), "x"), "get_kb_content")
    assert answer == {"status": "error", "error": "The text could not be read; the server's log says why."}


async def test_a_tool_that_is_called_before_the_start_says_so() -> None:
    source = Counted(Text("x", 1, datetime(2026, 1, 2, tzinfo=UTC)))
    result = await build_over(source, "x").by_name()["get_kb_content"].run(NoArguments(), Call())
    assert "not been read yet" in result.error
    assert source.reads == 0


@pytest.mark.requirement("F9", "F14")
def test_the_words_for_states_are_the_published_ones() -> None:
    info, content = output_schema(GetKbInfoTool.result), output_schema(GetKbContentTool.result)
    assert set(info["properties"]["status"]["enum"]) == {"available", "unavailable"}
    assert set(content["properties"]["status"]["enum"]) == {"ok", "empty", "error"}
    assert content["required"] == ["status"]
    assert content["properties"]["contentLength"]["type"] == "integer"


@pytest.mark.requirement("F29", "F30", "F31")
@pytest.mark.parametrize(
    ("content", "level", "words"),
    [
        ("abcd", "INFO", "Read the knowledge base text"),
        (None, "ERROR", "Reading the knowledge base text failed"),
    ],
)
async def test_the_start_logs_plainly_whether_the_file_was_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None, level: str, words: str
) -> None:
    path = tmp_path / "notes.txt"
    if content is not None:
        path.write_text(content)
    with caplog.at_level("INFO", "kb_server.toolsets.textfile"):
        await call(over_file(path), "get_kb_info")
    [record] = caplog.records
    fields = fields_of(record)
    assert (record.levelname, fields["source"]) == (level, str(path))
    assert record.getMessage().startswith(words)
    assert content is None or (fields["bytes"], fields["characters"]) == (4, 4)
    assert content is None or content not in record.getMessage()


async def test_that_no_file_is_configured_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The operator learns why the toolset has no text."""
    with caplog.at_level("INFO", "kb_server.toolsets.textfile"):
        await call(build(Services(ServerSettings(toolsets=["textfile"]))), "get_kb_info")
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    words = "No file is configured. Set KB_TEXT_FILE, or start with --file PATH."
    assert logged == [("WARNING", f"No knowledge base text: {words}")]


@pytest.mark.requirement("F30")
async def test_each_call_puts_its_status_and_its_figures_in_the_log(notes: Path) -> None:
    log: dict[str, Any] = {}
    await call(over_file(notes), "get_kb_content", log)
    assert log == {"kb_status": "ok", "content_length": 9}


@pytest.mark.requirement("F43")
async def test_sample_and_default_description_are_placeholders_about_azure_managed_grafana() -> None:
    content = (await call(over_file(SAMPLE), "get_kb_content"))["content"]
    described = (await call(build(Services(ServerSettings())), "get_kb_info"))["info"]
    assert described["description"] == PLACEHOLDER
    assert "Azure Managed Grafana" in PLACEHOLDER
    assert "placeholder" in PLACEHOLDER
    assert re.search("azure managed grafana", content, re.IGNORECASE)
    assert "placeholder" in content


async def test_a_file_that_nobody_has_described_is_described_by_its_name(notes: Path) -> None:
    toolset = over_file(notes)
    info = (await call(toolset, "get_kb_info"))["info"]
    assert info["description"].startswith(f"the text file {notes.name} ")
    assert "Grafana" not in info["description"] + toolset.instructions


def test_without_a_file_the_toolset_is_offered_only_where_it_was_chosen(notes: Path) -> None:
    """An agent that lists the endpoints finds no empty one."""
    assert "textfile" not in offered(ServerSettings(), ["kb"])
    assert "textfile" in offered(ServerSettings(), ["kb", "textfile"])
    assert "textfile" in offered(ServerSettings(text_file=str(notes)), ["kb"])


async def test_the_file_is_read_outside_the_event_loop() -> None:
    """A slow disk does not delay other calls."""

    class Where(Counted):
        def read(self) -> Text:
            self.name = threading.current_thread().name
            return super().read()

    source = Where(Text("x", 1, datetime(2026, 1, 2, tzinfo=UTC)))
    await call(build_over(source, "x"), "get_kb_info")
    assert source.name != threading.main_thread().name
