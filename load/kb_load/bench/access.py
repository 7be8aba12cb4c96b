"""What it costs to know who calls: `kb bench access`.

The same search of the same passages where no key is needed, with the only key, and with a named key for some
collections, without and with the audit log. Every passage is within the key's reach, so that the answers are
the same, and are looked at before anything is timed. In two manners:

kb serve   the server alone, over a stub engine that answers every search with the same bytes. It finds out
           who calls, names the caller to the engine in a header, and writes a line.
kb up      with its own engine, of notes made by seed and the embedder that needs no model: the engine narrows
           its queries to what is within reach, and writes a line as well. Processor time is that of all
           processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

from kb_config.audit_chains import check, entries
from kb_contracts.access.key_file import KeyFile
from kb_contracts.access.reach import RIGHTS
from kb_load.bench import Option
from kb_load.bench.calls import CPU_OF_MANNERS, NOTES_CALL, NOTES_TAG, CallsReport, add_notes, measure
from kb_load.bench.runner import KEY, Standing, kb_serve
from kb_load.messages import CallFailed
from kb_load.processes import LOOPBACK, free_port, running

NOBODY, ONE_KEY, REACH, AUDITED = "no key", "the only key", "a key of reach", "the same, audited"
SIDES = (NOBODY, ONE_KEY, REACH, AUDITED)
_SETTINGS = {ONE_KEY: {"KB_MCP_API_KEY": KEY}, AUDITED: {"KB_AUDIT": "true"}}
SERVE, UP = "kb serve", "kb up"
_COLLECTION = NOTES_TAG.partition(":")[2]


class AccessReport(CallsReport, frozen=True, kw_only=True):
    title = "tools/call of kb_search: keys of reach and audit log, beside none"
    columns: ClassVar = {
        "command": "{0.manner}",
        "version": "{0.era}",
        "caller": "{0.title}",
        "calls/s": "{0.rate:.0f}",
        "of none": "{0.rate_ratio:.2f}",
        "lowest-highest": "{0.lowest_ratio:.2f}-{0.highest_ratio:.2f}",
        "p99 ms": "{0.p99:.1f}",
        "CPU us/call": "{0.cpu:.0f}",
        "x none": "{0.cpu_ratio:.2f}",
    }
    panels = (CPU_OF_MANNERS,)


def run(
    *,
    rounds: Annotated[int, Option("turns")] = 7,
    seconds: Annotated[int, Option("how long each turn takes")] = 2,
    connections: Annotated[int, Option("how many are busy")] = 16,
    notes: Annotated[int, Option("what kb up searches", high=100_000)] = 300,
    note: Callable[[str], None] = print,
) -> AccessReport:
    """Measure in turns: short ones and many, for neighbours on the machine come and go.

    Raises as `measure`; CallFailed also where the audit log lacks calls.
    """
    report = AccessReport(connections=connections, seconds=seconds, rounds=[], figures=[])

    @contextmanager
    def serve(name: str, engine_url: str, folder: Path) -> Iterator[Standing]:
        home = folder / f"serve {name}"
        key, _ = _keys(home, name)
        settings = {"KB_MCP_API_KEY": "", **_SETTINGS.get(name, {})}
        with kb_serve(name, engine_url, home, **settings) as standing:
            yield replace(standing, key=key)
        _check_audit(home, name, ["server"])

    @contextmanager
    def up(name: str, _engine_url: str, folder: Path) -> Iterator[Standing]:
        home, port, engine_port = folder / f"up {name}", free_port(), free_port()
        key, administrator = _keys(home, name)
        settings = {"KB_HOME": str(home), "KB_MCP_PORT": str(port), "KB_ENGINE_PORT": str(engine_port)}
        settings |= {"KB_EMBEDDER": "hash", **_SETTINGS.get(name, {})}
        with running(name, ["-m", "kb_cli.main", "up"], home, port=port, **settings) as process:
            add_notes(f"http://{LOOPBACK}:{engine_port}", notes, key=administrator)
            yield Standing(process, port, counts=True, call=NOTES_CALL, home=home, key=key)
        _check_audit(home, name, ["server", "engine"])

    measure(report, SIDES, serve, (SERVE,), NOBODY, rounds, note)
    measure(report, SIDES, up, (UP,), NOBODY, rounds, note)
    return report


def _keys(home: Path, name: str) -> tuple[str, str]:
    """What callers send, and what whoever takes notes in does; named keys are made."""
    home.mkdir()
    if name not in (REACH, AUDITED):
        return (KEY if name == ONE_KEY else ""), ""
    file = KeyFile(home / "keys.json")
    _, administrator = file.create("administrator", rights=RIGHTS)
    _, reader = file.create("reader", rights=frozenset({"read"}), collections=(_COLLECTION, "other-*"))
    return reader, administrator


def _check_audit(home: Path, name: str, parts: list[str]) -> None:
    """Raises CallFailed: a log is where none is due, is broken, or lacks the caller's name in a part."""
    folder = home / "audit"
    if name != AUDITED:
        if folder.exists():
            raise CallFailed(f"{name}: an audit log was written")
        return
    if breaks := check(folder):
        raise CallFailed(f"{name}: the audit log is broken: {breaks[0].what}")
    named = {entry.part for entry in entries(folder) if entry.who == "reader" and entry.outcome == "ok"}
    if missing := set(parts) - named:
        raise CallFailed(f"{name}: no line names the caller in the {' and the '.join(sorted(missing))}'s log")
