"""The toolset textfile in a process on stdio, with the official client and with raw messages."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from kb_load.processes import clean_environment
from tests.protocol.sockets import INITIALIZED
from tests.support.mcp_messages import call, initialize
from tests.support.patience import COMMAND_SECONDS

pytestmark = pytest.mark.process

TEXT = "Azure Managed Grafana\r\nzażółć €\n"
FIRST = initialize("2025-11-25")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_bytes(TEXT.encode())
    return path


@asynccontextmanager
async def connected(folder: Path, *arguments: str) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-P", "-m", "kb_cli.main", "stdio", "--toolset", "textfile", *arguments],
        cwd=folder,
    )
    with Path(os.devnull).open("w") as log:  # noqa: ASYNC230 - it blocks on nothing
        async with Client(stdio_client(parameters, errlog=log)) as client:
            yield client


def conversation(
    folder: Path, *messages: dict[str, Any] | str, arguments: tuple[str, ...] = (), **environment: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Send `messages` to a `kb stdio`; return the messages on stdout and the log lines on stderr."""
    lines = [message if isinstance(message, str) else json.dumps(message) for message in messages]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kb_cli.main", "stdio", "--toolset", "textfile", *arguments],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        cwd=folder,
        env=clean_environment(**environment),
        timeout=COMMAND_SECONDS,
        check=True,
    )
    return (
        [json.loads(line) for line in done.stdout.splitlines()],
        [json.loads(line) for line in done.stderr.splitlines()],
    )


def processor_seconds() -> float:
    """Processor time of finished child processes, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.requirement("F25", "F28", "F40", "F49")
async def test_the_official_client_finds_and_calls_both_tools(notes: Path) -> None:
    """The file is named by a file of settings."""
    (notes.parent / "kb.toml").write_text(f'KB_TEXT_FILE = "{notes}"\n')
    async with connected(notes.parent, "--description", "Sizes") as client:
        listed = await client.list_tools()
        info = await client.call_tool("get_kb_info", {})
        content = await client.call_tool("get_kb_content", {})
    assert [tool.name for tool in listed.tools] == ["get_kb_info", "get_kb_content"]
    assert info.structured_content is not None
    assert info.structured_content["info"]["description"] == "Sizes"
    expected = {"status": "ok", "contentLength": len(TEXT), "content": TEXT}
    assert content.structured_content == expected
    assert json.loads(getattr(content.content[0], "text")) == expected  # noqa: B009 - one of several kinds


@pytest.mark.requirement("F4", "F8", "F31", "F34", "F42")
def test_without_its_file_the_server_runs_and_reports_the_reason(tmp_path: Path) -> None:
    """Neither call is an MCP error: the status reports the problem.

    The log has it at level error, so that it is logged even at that level.
    """
    calls = (call("get_kb_info", 1), call("get_kb_content", 2))
    arguments = ("--file", "gone.txt", "--log-level", "error")
    messages, log = conversation(tmp_path, FIRST, INITIALIZED, *calls, arguments=arguments)
    info, content = (message["result"] for message in messages[1:])
    assert info["isError"] is content["isError"] is False
    assert info["structuredContent"]["status"] == "unavailable"
    assert content["structuredContent"] == {"status": "error", "error": "gone.txt does not exist."}
    assert [(line["level"], line["message"]) for line in log] == [
        ("error", "Reading the knowledge base text failed: gone.txt does not exist.")
    ]


@pytest.mark.requirement("F29", "F30", "F31", "F32", "F38")
def test_the_log_is_on_stderr_and_tells_start_and_calls(notes: Path) -> None:
    messages, log = conversation(
        notes.parent, FIRST, INITIALIZED, call("get_kb_content", 1), arguments=("--file", str(notes))
    )
    assert all(message["jsonrpc"] == "2.0" for message in messages)
    assert [(line["level"], line["message"]) for line in log][:3] == [
        ("info", "Starting on stdio"),
        ("info", "Read the knowledge base text"),
        ("info", "Serving on stdio"),
    ]
    told = {line["message"]: line for line in log}
    start = told["Read the knowledge base text"]
    assert (start["source"], start["bytes"], start["characters"]) == (
        str(notes),
        len(TEXT.encode()),
        len(TEXT),
    )
    assert "Executing tool get_kb_content (GetKbContentTool)" in told
    assert told["Tool get_kb_content (GetKbContentTool) ended"]["content_length"] == len(TEXT)
    assert not any("Grafana" in json.dumps(line) for line in log)


@pytest.mark.requirement("F18", "F24", "F33")
def test_ten_mebibytes_are_loaded_and_returned_within_five_seconds(tmp_path: Path) -> None:
    """In processor time, so that other load on the machine does not matter."""
    content = ("knowledge, line by line, until it is large\n" * 250_000)[: 10 * 1024 * 1024]
    path = tmp_path / "large.txt"
    path.write_text(content)
    before = processor_seconds()
    messages, log = conversation(
        tmp_path,
        FIRST,
        INITIALIZED,
        call("get_kb_content", 1),
        arguments=("--file", str(path), "--log-level", "info"),
    )
    seconds = processor_seconds() - before
    result = messages[1]["result"]
    assert result["structuredContent"]["content"] == content
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert log[1]["characters"] == len(content)
    assert seconds < 5


def test_starting_imports_no_http_and_no_client_of_the_engine(notes: Path) -> None:
    script = (
        "import sys\n"
        "from kb_cli.main import main\n"
        f"main(['stdio', '--toolset', 'textfile', '--file', {str(notes)!r}, '--log-level', 'error'])\n"
        "print(*(name for name in ('aiohttp', 'httpx', 'rich', 'kb_server.engine_client.client', "
        "'kb_engine') "
        "if name in sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(FIRST) + "\n",
        capture_output=True,
        text=True,
        env=clean_environment(),
        cwd=notes.parent,
        timeout=COMMAND_SECONDS,
        check=True,
    )
    assert done.stderr.split() == []
    assert json.loads(done.stdout)["result"]["serverInfo"]["name"] == "kb-textfile"
