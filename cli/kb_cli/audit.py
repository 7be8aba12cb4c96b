"""`kb audit`: query the audit log, print its last lines, and check its integrity."""

from __future__ import annotations

import argparse
from collections import deque
from pathlib import Path

import msgspec

from kb_cli.config import ClientSettings, read
from kb_cli.output import CliError, Exit, Output, UsageError, counted
from kb_config.audit import AuditSettings
from kb_config.audit_chains import Head, Wanted, check, entries, heads


def run(options: argparse.Namespace, out: Output) -> int:
    """List lines, print the heads, or check the chains."""
    if options.known is not None and not options.check:
        raise UsageError("--known goes with --check")
    folder = read(AuditSettings, options).folder(read(ClientSettings, options).home)
    if not folder.is_dir():
        words = f"{folder}: there is no audit log. With KB_AUDIT=true engine and server write one."
        raise CliError(words)
    if options.check:
        return _check(folder, options.known, out)
    if options.heads:
        out.document(heads(folder))
    else:
        _list(folder, options, out)
    return Exit.OK


def _list(folder: Path, options: argparse.Namespace, out: Output) -> None:
    wanted = Wanted(**{name: getattr(options, name) for name in Wanted.__struct_fields__})
    found = deque((each for each in entries(folder) if wanted.has(each)), maxlen=options.limit)
    lines = sorted(found, key=lambda entry: entry.at)
    if out.answered(lines):
        return
    columns = ["at", "part", "who", "action", "outcome", "documents", "address", "correlation id"]
    rows = []
    for entry in lines:
        about = " ".join(entry.documents) or (None if entry.found is None else f"{entry.found} found")
        who, place = entry.who or entry.user, (entry.address, entry.correlation_id)
        rows.append([out.when(entry.at), entry.part, who, entry.action, entry.outcome, about, *place])
    out.table(columns, rows)


def _check(folder: Path, known: str | None, out: Output) -> int:
    breaks = check(folder, () if known is None else _heads(Path(known)))
    if not out.answered({"holds": not breaks, "breaks": breaks}):
        for each in breaks:
            out.text(f"{each.chain}, line {each.number}: {each.what}", style="red")
        verdict = f"broken in {counted(len(breaks), 'place')}" if breaks else "unbroken"
        out.text(f"{counted(len(heads(folder)), 'chain')}, {verdict}")
    return Exit.FAILED if breaks else Exit.OK


def _heads(file: Path) -> list[Head]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Head])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not the output of `kb audit --heads`: {error}") from error
