"""`kb reindex`: embed a base again with another model; a SQLite base while no engine uses it."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from time import sleep
from typing import TYPE_CHECKING

from kb_cli.config import read
from kb_cli.exits import CliError, Exit
from kb_cli.output import Output
from kb_config.installing import install_command
from kb_engine.settings import EngineSettings

if TYPE_CHECKING:
    from kb_engine.embed.protocol import Embedder, Vectors

_WAITS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between attempts at one batch."""


def run(options: argparse.Namespace, out: Output) -> None:
    """Embed every chunk with the embedder of the settings and make it the base's own."""
    settings = read(EngineSettings, options)
    from kb_engine.embed.protocol import EmbedderUnavailable, TextRefused
    from kb_engine.embed.registry import embedder_from
    from kb_engine.store import BaseRefused

    try:
        embedder = embedder_from(settings.embedder, settings)
    except ValueError as error:
        raise CliError(Exit.USAGE, f"KB_EMBEDDER={settings.embedder!r}: {error}") from error
    try:
        with closing(embedder):
            embedder.load()
            count = _reindex(settings, embedder, _progress_on(out))
    except EmbedderUnavailable as error:
        raise CliError(Exit.FAILED, f"{error}; what is done stays, run it again to go on") from error
    except (BaseRefused, TextRefused) as error:
        raise CliError(Exit.FAILED, str(error)) from error
    base = str(settings.address or settings.database)
    if not out.answered({"chunks": count, "embedder": embedder.name, "base": base}):
        out.text(f"{count} chunks embedded with {embedder.name}", style="green")


def _reindex(settings: EngineSettings, embedder: Embedder, progress: Callable[[int, int], None]) -> int:
    from kb_engine.store import EmbedderIdentity, reindex_sqlite

    identity = EmbedderIdentity(embedder.name, embedder.dimensions)
    embed = partial(_patiently, embedder.embed)
    if settings.address is None:
        return reindex_sqlite(settings.database, embedder=identity, embed=embed, progress=progress)
    try:
        from kb_engine.store.postgres.reindex import reindex_postgres
    except ModuleNotFoundError as error:
        how = install_command("postgres")
        raise CliError(
            Exit.FAILED, f"the package {error.name} is not installed; install it with: {how}"
        ) from error
    return asyncio.run(reindex_postgres(settings.address, embedder=identity, embed=embed, progress=progress))


def _patiently(embed: Callable[[Sequence[str]], Vectors], texts: Sequence[str]) -> Vectors:
    """The vectors; an endpoint that is out of order for a minute or two does not end the work."""
    from kb_engine.embed.protocol import EmbedderUnavailable

    for wait in _WAITS:
        try:
            return embed(texts)
        except EmbedderUnavailable as error:
            sleep(max(wait, error.retry_after))
    return embed(texts)


def _progress_on(out: Output) -> Callable[[int, int], None]:
    """Counts on one line of stderr where a person looks on, else says nothing."""

    def count(done: int, total: int) -> None:
        if out.is_terminal:
            out.stderr.write(f"\r{done} of {total} chunks" + ("\n" if done >= total else ""))
            out.stderr.flush()

    return count
