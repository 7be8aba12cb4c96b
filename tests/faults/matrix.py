"""Every fault of the catalogue against every tool: the answer to the agent, and the effect on the engine.

    python -m tests.faults.matrix             every tool and cell, as JSON
    python -m tests.faults.matrix --write     the same into matrix.json and docs/faults.md, compared by tests

Each cell begins with an empty engine, to which the same server first adds the data that the tool needs; hence
the server must have recovered from the cell before. The fault meets the tool's first request (`once`), or all
of them (`lasting`). The values of a cell are

    ok          a success with the correct content, compared in detail
    <code>      an error result with this code
    ... +done   an error although the engine made the change (`+part`: a part of it)
    -           no request matched the fault, and the tool succeeded
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias

import httpx
import msgspec
from anyio.from_thread import BlockingPortal
from mcp.types import CallToolResult, TextContent

from kb_contracts.api.models import Document, DocumentList
from kb_server.settings import ServerSettings
from kb_server.testing import McpClient, McpServer, Mode, WaitlessClock, connected, event_loop, serving
from kb_simulator.harness.app import Simulator, in_thread
from kb_simulator.harness.client import ControlClient
from kb_simulator.harness.faults import CATALOGUE
from kb_simulator.settings import SimulatorSettings
from tests.support.patience import ANSWER_SECONDS
from tests.support.tool_table import TOOLS

EXPECTED = Path(__file__).with_name("matrix.json")
"""The committed matrix."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"

Lasts: TypeAlias = Literal["once", "lasting"]
LASTS: tuple[Lasts, ...] = ("once", "lasting")
Matrix: TypeAlias = dict[str, dict[str, dict[Lasts, str]]]
"""Cells by fault, tool and duration of the fault."""

UNTOUCHED = "-"
HANG = "hang"

TRIALS = {tool: row.trial for rows in TOOLS.values() for tool, row in rows.items() if row.trial}
"""The tools of `kb` and of `ragler`."""

_SEED = 7
_PATIENT_MS, _HASTY_MS = round(ANSWER_SECONDS * 1000), 3_000
"""Time-out of the engine's answers in milliseconds; the second is for trials with a hang."""

_LONG = 60.0


@dataclass(frozen=True)
class Bench:
    """A server with its engine, and a client. `control` accesses the engine without faults."""

    server: McpServer
    client: McpClient
    control: ControlClient

    def begin_anew(self) -> None:
        """Empty the engine, disarm its faults and close the circuit breaker."""
        self.control.reset()
        self.server.clock.advance(_LONG)

    def calm(self) -> None:
        """Disarm all faults and close the circuit breaker."""
        self.control.faults.disarm_all()
        self.server.clock.advance(_LONG)

    def told(self, result: CallToolResult) -> dict[str, Any]:
        """Return the content of an error result, checking that it has a message and no structured content."""
        assert result.is_error
        assert result.structured_content is None, "an error has no structured content"
        told = json.loads("".join(block.text for block in result.content if isinstance(block, TextContent)))
        assert told["message"], "an error says what happened"
        return dict(told)

    def documents(self) -> list[Document]:
        """The documents in the engine; only faults that match any caller apply."""
        with httpx.Client(trust_env=False, verify=False, timeout=ANSWER_SECONDS) as http:
            answer = http.get(
                f"{self.server.settings.engine_url}/api/v1/documents?limit=1000",
                headers={"Authorization": f"Bearer {self.server.settings.engine_api_key}"},
            )
        return msgspec.json.decode(answer.content, type=DocumentList).documents


class Machine:
    """Creates benches."""

    def __init__(
        self, simulator: Simulator, control: ControlClient, loop: BlockingPortal, home: Path
    ) -> None:
        self._simulator = simulator
        self._control = control
        self._loop = loop
        self._home = home
        self._numbers = count(1)

    @contextmanager
    def bench(self, mode: Mode = "2026-07-28", **settings: Any) -> Iterator[Bench]:
        number = next(self._numbers)
        key = f"machine-{id(self)}-{number}"
        control = self._control.namespace(key, api_key=key)
        configured = ServerSettings(
            **{
                "engine_url": self._simulator.url,
                "engine_api_key": key,
                "ragler_api_url": self._simulator.url,
                "toolsets": ["kb", "ragler"],
                "port": 0,
                "home": self._home / str(number),
                "request_timeout_ms": _PATIENT_MS,
                **settings,
            }
        )
        try:
            with (
                serving(self._loop, configured, WaitlessClock(control.clock), seed=_SEED) as server,
                connected(self._loop, server.mcp_url, mode=mode) as client,
            ):
                yield Bench(server, client, control)
        finally:
            control.remove()


@contextmanager
def machine() -> Iterator[Machine]:
    with (
        tempfile.TemporaryDirectory() as home,
        in_thread(SimulatorSettings(seed=_SEED, port=0, control=0)) as simulator,
        ControlClient(simulator.control_url or "") as control,
        event_loop() as loop,
    ):
        yield Machine(simulator, control, loop, Path(home))


def cell(bench: Bench, tool: str, fault: str, lasts: Lasts) -> str:
    bench.begin_anew()
    trial = TRIALS[tool]
    arguments = trial.prepare(bench)
    armed = bench.control.faults.arm(fault, times=1 if lasts == "once" else None, optional=True)
    result = bench.client.call(tool, **arguments)
    fired = bench.control.faults.disarm(armed.id).fired
    if result.is_error:
        told = bench.told(result)
        done = trial.done(bench)
        return f"{told['error']} +{done}" if done else str(told["error"])
    assert result.structured_content is not None, "a success has structured content"
    if not trial.shows(result.structured_content, bench):
        return f"wrong: {json.dumps(result.structured_content)}"
    return "ok" if fired else UNTOUCHED


def column(made: Machine, tool: str, faults: Sequence[str]) -> dict[str, dict[Lasts, str]]:
    # A server for each tool, because open uploads are limited, and a second one with a short time-out for
    # hangs.
    with made.bench() as bench, made.bench(request_timeout_ms=_HASTY_MS) as hasty:
        return {
            fault: {lasts: cell(hasty if fault == HANG else bench, tool, fault, lasts) for lasts in LASTS}
            for fault in faults
        }


def matrix(faults: Sequence[str] = tuple(CATALOGUE)) -> Matrix:
    """Return all cells. Tools run concurrently, so that the time-outs of hangs overlap."""
    with machine() as made, ThreadPoolExecutor(len(TRIALS)) as pool:
        columns = list(pool.map(lambda tool: column(made, tool, faults), TRIALS))
    return {
        fault: {tool: cells[fault] for tool, cells in zip(TRIALS, columns, strict=True)} for fault in faults
    }


def encoded(found: Matrix) -> str:
    rows = [
        f"  {json.dumps(fault)}: {{\n"
        + ",\n".join(f"    {json.dumps(tool)}: {json.dumps(cells)}" for tool, cells in row.items())
        + "\n  }"
        for fault, row in found.items()
    ]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def markdown(found: Matrix) -> str:
    """The matrix for the documentation; tools with equal outcomes share a column."""
    columns: dict[tuple[str, ...], list[str]] = {}
    for tool in next(iter(found.values())):
        cells = tuple(_in_words(row[tool]) for row in found.values())
        columns.setdefault(cells, []).append(f"`{tool}`")
    rows = [["Fault", *(", ".join(tools) for tools in columns.values())], ["---"] * (len(columns) + 1)]
    rows += [[f"`{fault}`", *(cells[place] for cells in columns)] for place, fault in enumerate(found)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _in_words(both: dict[Lasts, str]) -> str:
    once, lasting = both["once"], both["lasting"]
    return once if once == lasting else f"{once}; lasting: {lasting}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.matrix", description="faults by tools")
    parser.add_argument("--write", action="store_true", help="write the matrix and its page")
    options = parser.parse_args(arguments)
    if options.write:
        was, found = json.loads(EXPECTED.read_text("utf-8")), matrix()
        EXPECTED.write_text(encoded(found), "utf-8")
        DOCUMENT.write_text(DOCUMENT.read_text("utf-8").replace(markdown(was), markdown(found)), "utf-8")
    else:
        sys.stdout.write(encoded(matrix()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
