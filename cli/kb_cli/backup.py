"""`kb backup` and `kb restore`: a copy of a base that may be in use, and a base made from a copy."""

from __future__ import annotations

import argparse

from kb_cli.config import base_failures, path_of, read
from kb_cli.output import Output, UsageError, counted
from kb_engine.settings import EngineSettings
from kb_engine.store.sqlite.backup import KEYS, Backup, BackupRefused, back_up
from kb_engine.store.sqlite.backup import restore as restore_base


def backup(options: argparse.Namespace, out: Output) -> None:
    """Copy the base of the settings into a new folder, and read the copy back."""
    settings = _of_sqlite(options)
    with base_failures(BackupRefused):
        made = back_up(
            settings.database,
            settings.spool_folder,
            settings.keys_file,
            path_of(options.copy),
            damaged=options.damaged,
        )
    for each in made.left_out:
        out.note(f"left out: {each}")
    _report(out, made, f"copied to {options.copy}, and read back")


def restore(options: argparse.Namespace, out: Output) -> None:
    """Make the base of the settings from a copy."""
    settings = _of_sqlite(options)
    keys, had_keys = settings.keys_file, settings.keys_file.exists()
    with base_failures(BackupRefused):
        made = restore_base(path_of(options.copy), settings.database, settings.spool_folder, keys)
    if had_keys:
        out.note(f"{keys}: the keys that were there stay")
    elif KEYS in made.files:
        out.note(f"{keys}: restored as of {made.made_at}; keys revoked since then are valid again")
    else:
        out.note("the copy has no keys: without keys and without KB_API_KEY anyone may do everything")
    _report(out, made, f"restored in {settings.database}; its index is made at the first start")


def _of_sqlite(options: argparse.Namespace) -> EngineSettings:
    settings = read(EngineSettings, options)
    if settings.address is not None:
        raise UsageError(
            f"{settings.address} is a base of PostgreSQL: pg_dump copies it, pg_restore restores it"
        )
    return settings


def _report(out: Output, made: Backup, what: str) -> None:
    if not out.answered(made):
        counts = f"{counted(made.documents, 'document')}, {counted(made.chunks, 'passage')}"
        counts += f", {counted(made.uploads, 'upload')} not yet read" if made.uploads else ""
        counts += f", {counted(made.failed_uploads, 'upload')} of failed jobs" if made.failed_uploads else ""
        counts += f", {counted(made.originals, 'file')}" if made.originals else ""
        out.text(f"{counts}, as of {out.when(made.made_at)}: {what}", style="green")
