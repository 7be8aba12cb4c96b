"""Fixtures for tests of agents, and of other MCP clients of kb.

    pytest -p kb_server.testing.pytest_plugin
    pytest_plugins = ["kb_server.testing.pytest_plugin"]    # or this, in `conftest.py`

    def test_an_agent_learns_that_the_engine_is_busy(mcp_client, faults):
        faults.arm("queue_full", operation="search")
        assert mcp_client.refused("kb_search", query="bees")["error"] == "engine_busy"

The fixtures of `kb_simulator.pytest_plugin` (simulator, engine, clock, faults, journal) come with it, and:

    mcp_server    the MCP server in front of the test's engine: `mcp_url`, `clock`
    mcp_client    the official client, connected to it: `ok`, `refused`, `call`, `tools`
    mcp_mode      the client's way to connect: "auto", "legacy" (the handshake), "2026-07-28"
    mcp_settings  further settings of the server, such as `{"toolsets": ["kb", "kb-extra"]}`

The last two are to be overridden, by a fixture of the same name or, for one test, by
`@pytest.mark.parametrize("mcp_mode", ["legacy", "2026-07-28"])`.

The server's waits between attempts return at once and move the engine's clock by the same time. A hanging
engine takes real time: a call fails after `request_timeout_ms`, 30 seconds unless `mcp_settings` has a
shorter time, which then applies to every request of that test. Server and client run in a thread of their
own; an asynchronous test may as well connect `mcp.Client(mcp_server.mcp_url)` in its own loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pytest
from anyio.from_thread import BlockingPortal

from kb_server.settings import ServerSettings
from kb_server.testing import (
    Advancing,
    McpClient,
    McpServer,
    Mode,
    WaitlessClock,
    connected,
    event_loop,
    serving,
)

# By name only: the server does not depend on the simulator, and pytest must import the plugin itself, to
# rewrite its assertions.
pytest_plugins = ["kb_simulator.pytest_plugin"]


class _Faults(Protocol):
    def disarm_all(self) -> object: ...


class _Control(Protocol):
    @property
    def clock(self) -> Advancing: ...
    @property
    def faults(self) -> _Faults: ...


class Engine(Protocol):
    """The part of the fixture `engine` that the server's fixtures use."""

    @property
    def url(self) -> str: ...
    @property
    def api_key(self) -> str: ...
    @property
    def control(self) -> _Control: ...


@pytest.fixture(scope="session")
def _mcp_loop() -> Iterator[BlockingPortal]:
    with event_loop() as loop:
        yield loop


@pytest.fixture
def mcp_mode() -> Mode:
    """The client's way to connect."""
    return "auto"


@pytest.fixture
def mcp_settings() -> Mapping[str, Any]:
    """Fields of `kb_server.settings.ServerSettings` that are to differ from the fixture's."""
    return {}


@pytest.fixture
def mcp_server(
    engine: Engine,
    request: pytest.FixtureRequest,
    mcp_settings: Mapping[str, Any],
    _mcp_loop: BlockingPortal,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[McpServer]:
    """The MCP server in front of the test's engine, with a data folder of its own."""
    fields: dict[str, Any] = {
        "engine_url": engine.url,
        "engine_api_key": engine.api_key,
        "ragler_api_url": engine.url,
        "port": 0,
        "home": tmp_path_factory.mktemp("kb-home"),
    }
    settings = ServerSettings(**{**fields, **mcp_settings})
    clock = WaitlessClock(engine.control.clock)
    seed = request.getfixturevalue("simulator").settings.seed
    with serving(_mcp_loop, settings, clock, seed=seed) as server:
        yield server
        # Release hanging requests, or the server would wait for its calls.
        engine.control.faults.disarm_all()


@pytest.fixture
def mcp_client(mcp_server: McpServer, mcp_mode: Mode, _mcp_loop: BlockingPortal) -> Iterator[McpClient]:
    """The official client, connected to the test's server."""
    with connected(_mcp_loop, mcp_server.mcp_url, mode=mcp_mode, key=mcp_server.settings.api_key) as client:
        yield client
