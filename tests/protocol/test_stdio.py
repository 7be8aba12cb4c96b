"""Serving over stdin and stdout: a process, its pipes, and every way in which they end."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest

from tests.protocol.conftest import Start
from tests.support.mcp_messages import call, initialize, request
from tests.support.patience import ANSWER_SECONDS

pytestmark = pytest.mark.process

READY = initialize("2025-06-18")


async def test_requests_piped_in_are_answered_though_stdin_has_ended(start: Start) -> None:
    """`printf ... | kb stdio` shows its answers, including the answer to a last line without a line end."""
    process = await start()
    assert process.process.stdin is not None
    lines = [READY, {"jsonrpc": "2.0", "method": "notifications/initialized"}, call("echo", 2, text="piped")]
    process.process.stdin.write(b"\n".join(json.dumps(line).encode() for line in lines))
    status, out, _ = await process.end()
    answers = {answer["id"]: answer for answer in map(json.loads, out.splitlines())}
    assert status == 0
    assert answers[2]["result"]["structuredContent"]["said"] == "piped"


async def test_a_file_can_be_stdin(start: Start, tmp_path: Any) -> None:
    """The event loop cannot wait for a file, only read it."""
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (READY, call("echo", 2, text="filed"))))
    with path.open("rb") as requests:
        status, out, _ = await (await start(stdin=requests)).end()
    assert status == 0
    assert b"filed" in out


async def test_a_call_in_flight_does_not_hold_up_the_end(start: Start) -> None:
    process = await start()
    assert (await process.ask(READY))["result"]["protocolVersion"] == "2025-06-18"
    await process.send(call("slow", 2))
    await process.told(b"Executing tool slow")
    status, _, err = await process.end()
    assert status == 0
    assert b'"error":"cancelled"' in err
    assert b"left 1" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_process_though_stdin_is_open(start: Start, number: signal.Signals) -> None:
    process = await start()
    await process.ask(READY)
    process.process.send_signal(number)
    await process.told(b"left 1")
    assert await asyncio.wait_for(process.process.wait(), ANSWER_SECONDS) == 0


async def test_a_client_that_closes_stdout_ends_the_process_quietly(start: Start) -> None:
    process = await start()
    await process.ask(READY)
    transport = process.process._transport.get_pipe_transport(1)  # type: ignore[attr-defined]
    transport.close()
    assert process.process.stdout is not None
    await process.process.stdout.read()  # until it is closed: an earlier answer would still be accepted
    await process.send(request("ping", request_id=2))
    await process.told(b"closed its end")
    rest = await process.told(b"left 1")
    assert b"Traceback" not in rest
    assert await asyncio.wait_for(process.process.wait(), ANSWER_SECONDS) == 0


GARBAGE = {
    b"garbage": -32700,
    b'{"jsonrpc":"2.0","id":1,"method":': -32700,
    b"\xff\xfe": -32700,
    b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}': -32700,
    b"[" * 100_000: -32700,
    b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}': -32700,
    b'{"jsonrpc":"2.0","id":true,"method":"ping"}': -32600,
    b"[]": -32600,
    b"5": -32600,
}


@pytest.mark.requirement("F34")
async def test_a_line_that_is_no_message_is_answered_and_survived(start: Start) -> None:
    """Blank lines and responses that nobody asked for are passed over."""
    process = await start()
    for line, code in GARBAGE.items():
        assert (await process.ask(line))["error"]["code"] == code, line[:50]
    assert "result" in await process.ask(READY)
    for line, code in GARBAGE.items():
        assert (await process.ask(line))["error"]["code"] == code, line[:50]
    await process.send(b"", b"  ", {"jsonrpc": "2.0", "id": 9, "result": {}})
    assert (await process.ask(request("ping", request_id=3)))["id"] == 3


async def test_a_line_of_twelve_mebibytes_is_read_and_a_longer_one_refused(start: Start) -> None:
    """A chunk of 8 MiB in base64 fits, as over HTTP."""
    process = await start()
    await process.ask(READY)
    ping = json.dumps(request("ping", request_id=2)).encode()
    limit = 12 * 1024 * 1024
    assert (await process.ask(ping + b" " * (limit - len(ping))))["id"] == 2
    assert (await process.ask(ping + b" " * limit))["error"]["code"] == -32700
    assert (await process.ask(ping))["id"] == 2


@pytest.mark.requirement("F32")
async def test_output_printed_by_a_tool_goes_to_stderr(start: Start) -> None:
    process = await start("print")
    await process.ask(READY)
    assert "result" in await process.ask(call("echo", 2, text="printed"))
    _, out, err = await process.end()
    assert out == b""
    assert b"printed by accident" in err
    entries = [json.loads(line) for line in err.splitlines() if line.startswith(b"{")]
    assert {"Serving on stdio", "Executing tool echo (PrintingTool)"} <= {
        entry["message"] for entry in entries
    }


async def test_a_client_that_never_reads_stderr_is_served_all_the_same(start: Start) -> None:
    """Its pipe fills up; only the log stops."""
    process = await start()
    transport = process.process._transport.get_pipe_transport(2)  # type: ignore[attr-defined]
    transport.pause_reading()
    try:
        await process.ask(READY)
        for number in range(400):
            assert (await process.ask(call("echo", number, text="x")))["id"] == number
    finally:
        transport.resume_reading()
