"""Calls of a tool with two faults: which of the two the server reports.

The faults stand in the order in which they are reported: of each pair, the first one wins.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kb_contracts.access.keys import Quotas
from kb_contracts.access.reach import Access
from kb_server.access.grants import Grant
from kb_server.access.quotas import FileMeter
from kb_server.hosting.http import build_app
from kb_server.hosting.toolset_server import mount
from kb_server.settings import ServerSettings
from mcp_aiohttp.options import BodyLimits, HostingOptions
from mcp_aiohttp.protocol.caller import Identity
from tests.protocol.conftest import Served, serving
from tests.support.fake_toolset import Fake
from tests.support.mcp_messages import PLAIN, call

Sending = dict[str, Any]
"""The arguments of httpx for a call; its headers, the JSON-RPC `message` and `padding` of its body."""
Fault = Callable[[Sending], None]
LARGEST = 4096


class Grants:
    """An authenticator; the token `key` has full access, and each further word takes some away."""

    name = "key"
    is_needed = True

    def __init__(self, usage: Path) -> None:
        self._meter = FileMeter(usage, now=lambda: 0.0)
        self._meter.count_call("spent", 1)

    async def authenticate(self, token: str) -> Identity | None:
        scheme, *limits = token.split("+")
        if scheme != "key":
            return None
        name = "spent" if "rate" in limits else "caller"
        access = Access(name, frozenset(["read"])) if "right" in limits else Access(name)
        toolsets = frozenset(["other"]) if "toolset" in limits else None
        return Identity(
            name,
            Grant(access, toolsets, Quotas(calls_per_minute=1 if "rate" in limits else None), self._meter),
        )


def header(name: str, value: str) -> Fault:
    return lambda sending: sending["headers"].__setitem__(name, value)


def limit(word: str) -> Fault:
    def add(sending: Sending) -> None:
        sending["headers"]["Authorization"] += f"+{word}"

    return add


def member(**members: Any) -> Fault:
    return lambda sending: sending.update(members)


def message(**members: Any) -> Fault:
    return lambda sending: sending["message"].update(members)


def params(**members: Any) -> Fault:
    return lambda sending: sending["message"]["params"].update(members)


FAULTS: Mapping[str, tuple[Fault, str]] = {
    "token": (header("Authorization", "Bearer wrong"), "unauthorized"),
    "host": (header("Host", "evil.example"), "host_not_allowed"),
    "origin": (header("Origin", "http://evil.example"), "origin_not_allowed"),
    "path": (member(url="/mcp/none"), "not_found"),
    "method": (member(method="PUT"), "method_not_allowed"),
    "media type": (header("Content-Type", "text/plain"), "unsupported_media_type"),
    "size": (member(padding=LARGEST), "message_too_large"),
    "malformed": (member(prefix="{"), "parse_error"),
    "version": (header("MCP-Protocol-Version", "1999-01-01"), "unsupported_protocol_version"),
    "unknown method": (message(method="tools/none"), "method_not_found"),
    "unknown tool": (params(name="none"), "unknown_tool"),
    "toolset": (limit("toolset"), "forbidden: toolset"),
    "right": (limit("right"), "forbidden: right"),
    "rate": (limit("rate"), "rate_limited"),
    "arguments": (params(arguments={"yy": 1}), "invalid_parameter"),
    "tool": (member(), "document_not_found"),
}
UNORDERED = {"token": {"path": "not_found"}}
"""An unknown path needs no key, but its host and origin are checked."""


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A server with keys, and one tool that always refuses."""
    options = HostingOptions(authenticator=Grants(tmp_path / "usage"), body=BodyLimits(max_bytes=LARGEST))
    app = build_app(ServerSettings(), mount((Fake().toolset,), ["fake"]), options=options)
    async with serving(app) as running:
        yield running


async def refusal(served: Served, *faults: str) -> str:
    sending: Sending = {
        "method": "POST",
        "url": "/mcp",
        "headers": {**PLAIN, "Authorization": "Bearer key"},
        "message": call("refusing"),
    }
    for name in faults:
        FAULTS[name][0](sending)
    padding = " " * sending.pop("padding", 0)
    body = sending.pop("prefix", "") + json.dumps(sending.pop("message")) + padding
    answer = (await served.http.request(**sending, content=body.encode())).json()
    if "result" not in answer:
        error = answer["error"]
        return str(error if isinstance(error, str) else error["data"]["error_type"])
    problem = json.loads(answer["result"]["content"][0]["text"])
    if problem["error"] == "forbidden":
        return f"forbidden: {'toolset' if 'toolset' in problem['message'] else 'right'}"
    return str(problem["error"])


@pytest.mark.parametrize("first", FAULTS)
async def test_of_two_faults_of_a_call_the_earlier_one_is_reported(served: Served, first: str) -> None:
    names = list(FAULTS)
    seconds = names[names.index(first) :]
    reported = {second: await refusal(served, *{first: 0, second: 0}) for second in seconds}
    assert reported == dict.fromkeys(seconds, FAULTS[first][1]) | UNORDERED.get(first, {})
