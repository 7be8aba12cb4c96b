"""Every fault of the catalogue against every tool: the answer to the agent, and the effect on the engine.

    python -m tests.faults.matrix             every tool and cell, as JSON
    python -m tests.faults.matrix --markdown  the committed one, as in docs/faults.md
    python -m tests.faults.matrix --write     the same into matrix.json, with which a test compares it

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
import base64
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
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
from kb_contracts.api.ragler import collection_id
from kb_server.settings import ServerSettings
from kb_server.testing import McpClient, McpServer, Mode, WaitlessClock, connected, event_loop, serving
from kb_simulator.harness.app import Simulator, in_thread
from kb_simulator.harness.client import ControlClient
from kb_simulator.harness.faults import CATALOGUE
from kb_simulator.settings import SimulatorSettings
from tests.support.patience import ANSWER_SECONDS, JOB_SECONDS

EXPECTED = Path(__file__).with_name("matrix.json")
"""The committed matrix."""

Lasts: TypeAlias = Literal["once", "lasting"]
LASTS: tuple[Lasts, ...] = ("once", "lasting")
Matrix: TypeAlias = dict[str, dict[str, dict[Lasts, str]]]
"""Cells by fault, tool and duration of the fault."""

UNTOUCHED = "-"
HANG = "hang"

_SEED = 7
_PATIENT_MS, _HASTY_MS = round(ANSWER_SECONDS * 1000), 3_000
"""Time-out of the engine's answers in milliseconds; the second is for trials with a hang."""

_LONG = 60.0
_OLD, _NEW = "granite is an igneous rock", "basalt is an igneous rock"
_FILE = b"marble is a metamorphic rock"


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
        with httpx.Client(trust_env=False, verify=False) as http:
            answer = http.get(
                f"{self.server.settings.engine_url}/api/v1/documents?limit=1000",
                headers={"Authorization": f"Bearer {self.server.settings.engine_api_key}"},
            )
        return msgspec.json.decode(answer.content, type=DocumentList).documents


Arguments: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """A tool to call: its preparation, a check of its answer, and its effect on the engine."""

    tool: str
    prepare: Callable[[Bench], Arguments]
    shows: Callable[[Arguments, Bench], bool]
    done: Callable[[Bench], str] = lambda _bench: ""


def _noted(bench: Bench) -> int:
    added = bench.client.ok(
        "kb_addnote", text=_OLD, title=_OLD, collection="memory", wait_seconds=JOB_SECONDS
    )
    return int(added["document_id"])


def _nothing(bench: Bench) -> Arguments:
    _noted(bench)
    return {}


def _known_collection(bench: Bench) -> Arguments:
    """The collection's name was already fetched, so that a search in it is one request."""
    _noted(bench)
    known = {"collection_id": collection_id("memory")}
    bench.client.ok("get_collection_info", **known)
    return known


def _job(bench: Bench) -> str:
    return str(bench.client.ok("kb_addnote", text=_OLD, title=_OLD, wait_seconds=JOB_SECONDS)["job_id"])


def _started(bench: Bench) -> str:
    _noted(bench)
    started = bench.client.ok("kb_upload_start", filename="marble.txt", total_size=len(_FILE), title=_NEW)
    return str(started["upload_id"])


def _chunk(bench: Bench) -> Arguments:
    return {"upload_id": _started(bench), "chunk_index": 0, "data": base64.b64encode(_FILE).decode()}


def _sent(bench: Bench) -> Arguments:
    chunk = _chunk(bench)
    bench.client.ok("kb_upload_chunk", **chunk)
    return {"upload_id": chunk["upload_id"], "wait_seconds": 5}


def _added(bench: Bench) -> str:
    titles = sorted(document.title for document in bench.control.state().documents)
    assert titles in ([_OLD], sorted([_OLD, _NEW])), f"something was lost or doubled: {titles}"
    return "done" if len(titles) > 1 else ""


def _updated(bench: Bench) -> str:
    (document,) = bench.control.state().documents
    place = [tag for tag in document.tags if tag.startswith("collection:")]
    assert len(place) == 1, f"one collection, not {place}"
    steps = (document.title == _NEW, place == ["collection:workspace"])
    return "done" if all(steps) else "part" if any(steps) else ""


TRIALS: tuple[Trial, ...] = (
    Trial(
        "kb_search",
        lambda bench: {"query": f"granite {_noted(bench)}", "collection": "memory"},
        lambda result, _bench: [hit["text"] for hit in result["results"]] == [_OLD],
    ),
    Trial(
        "kb_addnote",
        lambda bench: {"text": _NEW, "title": _NEW, "wait_seconds": 5 * bool(_noted(bench))},
        lambda result, bench: bool(result["job_id"]) and _added(bench) == "done",
        _added,
    ),
    Trial(
        "kb_upload_start",
        lambda bench: {"filename": "marble.txt", "total_size": len(_FILE) * bool(_noted(bench))},
        lambda result, _bench: bool(result["upload_id"]),
    ),
    Trial("kb_upload_chunk", _chunk, lambda result, _bench: result["complete"] is True),
    Trial(
        "kb_upload_finish",
        _sent,
        lambda result, bench: bool(result["job_id"]) and _added(bench) == "done",
        _added,
    ),
    Trial(
        "kb_update_note",
        lambda bench: {
            "document_id": _noted(bench),
            "text": _NEW,
            "title": _NEW,
            "collection": "workspace",
        },
        lambda result, bench: (
            (result["title"], result["collection"]) == (_NEW, "workspace") and _updated(bench) == "done"
        ),
        _updated,
    ),
    Trial(
        "kb_get",
        lambda bench: {"document_id": _noted(bench)},
        lambda result, _bench: [chunk["text"] for chunk in result["chunks"]] == [_OLD],
    ),
    Trial(
        "kb_status",
        _nothing,
        lambda result, _bench: result["documents"]["total"] == 1,
    ),
    Trial(
        "kb_jobs",
        lambda bench: {"job_id": _job(bench)},
        lambda result, _bench: [job["status"] for job in result["jobs"]] == ["completed"],
    ),
    Trial(
        "search_knowledge",
        lambda bench: {"query": "granite", **_known_collection(bench)},
        lambda result, _bench: [hit["content"] for hit in result["results"]] == [_OLD],
    ),
    Trial(
        "list_collections",
        _nothing,
        lambda result, _bench: [each["name"] for each in result["collections"]] == ["memory"],
    ),
    Trial(
        "get_collection_info",
        lambda bench: {"collection_id": collection_id("memory")} if _noted(bench) else {},
        lambda result, _bench: (result["name"], result["chunk_count"]) == ("memory", 1),
    ),
)
"""The nine tools of `kb`, and the three of `ragler`."""


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


def cell(bench: Bench, trial: Trial, fault: str, lasts: Lasts) -> str:
    """Return the outcome of a tool under a fault."""
    bench.begin_anew()
    arguments = trial.prepare(bench)
    armed = bench.control.faults.arm(fault, times=1 if lasts == "once" else None, optional=True)
    result = bench.client.call(trial.tool, **arguments)
    fired = bench.control.faults.disarm(armed.id).fired
    if result.is_error:
        told = bench.told(result)
        done = trial.done(bench)
        return f"{told['error']} +{done}" if done else str(told["error"])
    assert result.structured_content is not None, "a success has structured content"
    if not trial.shows(result.structured_content, bench):
        return f"wrong: {json.dumps(result.structured_content)}"
    return "ok" if fired else UNTOUCHED


def column(made: Machine, trial: Trial, faults: Sequence[str]) -> dict[str, dict[Lasts, str]]:
    """The cells of one tool, by fault."""
    # A server for each tool, because open uploads are limited, and a second one with a short time-out for
    # hangs.
    with made.bench() as bench, made.bench(request_timeout_ms=_HASTY_MS) as hasty:
        return {
            fault: {lasts: cell(hasty if fault == HANG else bench, trial, fault, lasts) for lasts in LASTS}
            for fault in faults
        }


def matrix(faults: Sequence[str] = tuple(CATALOGUE), trials: Sequence[Trial] = TRIALS) -> Matrix:
    """Return all cells. Tools run concurrently, so that the time-outs of hangs overlap."""
    with machine() as made, ThreadPoolExecutor(len(trials)) as pool:
        columns = list(pool.map(lambda trial: column(made, trial, faults), trials))
    return {
        fault: {trial.tool: cells[fault] for trial, cells in zip(trials, columns, strict=True)}
        for fault in faults
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
    for tool in (trial.tool for trial in TRIALS):
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
    parser.add_argument("--markdown", action="store_true", help="print the committed one for the docs")
    parser.add_argument("--write", action="store_true", help=f"write {EXPECTED.name}")
    options = parser.parse_args(arguments)
    if options.markdown:
        sys.stdout.write(markdown(json.loads(EXPECTED.read_text("utf-8"))))
    elif options.write:
        EXPECTED.write_text(encoded(matrix()), "utf-8")
    else:
        sys.stdout.write(encoded(matrix()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
