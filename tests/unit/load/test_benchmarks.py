"""Benchmarks: options, load, and figures whose ratios are computed within a round."""

from __future__ import annotations

import json
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

from bench import BENCHMARKS, function_of, main, parser_for
from kb_load.messages import HANDSHAKE, MODERN, CallFailed, result_of, structured, tool_call
from kb_load.processes import clean_environment


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_options_of_a_benchmark_are_parameters_with_their_defaults(name: str) -> None:
    run = function_of(name)
    options = vars(parser_for(run, "bench", "").parse_args([]))
    assert (options.pop("json"), options.pop("report")) == (False, None)
    parameters = signature(run).parameters
    assert options == {option: parameters[option].default for option in options}
    assert options


@pytest.mark.parametrize("arguments", [["hosts", "--rounds", "0"], ["engine", "--sizes", "x"], ["nothing"]])
def test_a_wrong_option_ends_before_anything_runs(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert arguments[-1] in capsys.readouterr().err


@pytest.mark.process
def test_a_benchmark_runs_outside_the_repository(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bench", "startup", "--rounds", "1", "--warm", "0", "--json"],
        cwd=tmp_path,
        env=clean_environment(PYTHONPATH=""),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(map(len, json.loads(done.stdout)["seconds"].values())) == {1}


def test_a_modern_call_carries_its_envelope_and_its_routing_headers() -> None:
    message = tool_call(MODERN, "kb_search", {"query": "bees"}, key="secret")
    body = json.loads(message.body)
    assert body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == MODERN
    assert body["params"]["_meta"]["progressToken"] == 1
    assert (message.headers["Mcp-Method"], message.headers["Mcp-Name"]) == ("tools/call", "kb_search")
    assert message.headers["MCP-Protocol-Version"] == MODERN
    assert message.headers["Authorization"] == "Bearer secret"


def test_a_handshake_call_has_no_envelope() -> None:
    message = tool_call(HANDSHAKE, "kb_search", {"query": "bees"})
    assert json.loads(message.body)["params"]["_meta"] == {"progressToken": 1}
    assert message.headers["MCP-Protocol-Version"] == HANDSHAKE
    assert "Mcp-Method" not in message.headers
    assert "Authorization" not in message.headers


def test_a_plain_answer_and_a_stream_hold_the_same_result() -> None:
    """The last event of a stream is the response; earlier ones are progress."""
    plain = b'{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"total":3}}}'
    stream = (
        b'event: message\ndata: {"method":"notifications/progress"}\n\nevent: message\ndata: %s\n\n' % plain
    )
    assert structured(plain) == structured(stream) == {"total": 3}


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":[{"type":"text","text":"no"}]}}',
        b"[]",
        b"<html>",
        b"",
    ],
)
def test_a_response_without_a_result_is_a_failed_call(body: bytes) -> None:
    with pytest.raises(CallFailed):
        result_of(body)


def test_a_result_without_structured_content_is_a_failed_call() -> None:
    with pytest.raises(CallFailed, match="structuredContent"):
        structured(b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}')
