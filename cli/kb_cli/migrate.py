"""`kb migrate`: copy a base into another one, on SQLite or PostgreSQL."""

from __future__ import annotations

import argparse
import asyncio

from kb_cli.config import base_failures, read
from kb_cli.output import CliError, Output, counted
from kb_contracts.api.errors import EngineError
from kb_engine.address import printable
from kb_engine.care.migration import MigrationRefused, migrate
from kb_engine.settings import EngineSettings


def run(options: argparse.Namespace, out: Output) -> None:
    """Copy the base of one address to another, and compare the two."""
    source = read(EngineSettings, options, store=options.source)
    target = read(EngineSettings, options, store=options.target)

    def progress(what: str, done: int, total: int) -> None:
        out.progress(f"{what} {done} of {total}", is_last=done >= total)

    try:
        with base_failures(MigrationRefused):
            made = asyncio.run(migrate(source, target, progress))
    except EngineError as error:
        raise CliError(f"{error.detail} Run it again to continue.") from error
    if not out.answered(made):
        place = printable(options.target)
        held = f"{counted(made.documents, 'document')} ({counted(made.passages, 'passage')}, "
        held += f"{counted(made.versions, 'earlier version')})"
        out.text(f"Copied to {place} and compared: {held}", style="green")
        out.text(f"Start the engine with KB_STORE={place} and its embedder, {made.embedder}.")
