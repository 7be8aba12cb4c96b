"""The commands `kb sync` and `kb watch`.

list the folder and the base ─▶ plan ─▶ send, and wait ─▶ remove sources

A moved file keeps its old source until it is ingested under the new one.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from kb_cli.add import Adding, Progress, Result, status_of
from kb_cli.config import engine
from kb_cli.documents import labels
from kb_cli.output import CliError, Exit, Output, counted
from kb_cli.sync.folder import Folder, Listing
from kb_cli.sync.planning import Leaving, Plan, plan
from kb_contracts.api import models as m
from kb_contracts.api.operations import LIST_DOCUMENTS, REMOVE_SOURCE, DocumentsQuery, SourceQuery
from kb_server.collection_tags import tags_for_submission

if TYPE_CHECKING:
    from kb_cli.client import EngineClient

_PAGE = 1_000
_SETTLED_MS = 1_500
"""Time without a change before a run, in milliseconds; an editor writes a file in several steps."""
_TICK_MS = 500
_LOOK_AGAIN_SECONDS = 600.0
"""Time after which a run starts without a change, in seconds, for unreported changes and failed files."""
_PAUSE_SECONDS = 5.0
"""Pause after a failure, in seconds."""


def run(options: argparse.Namespace, out: Output) -> int:
    """Bring the collection in step with the folder once."""
    folder, tags = _folder(options), labels(options, tags_for_submission)
    with engine(options) as client:
        if options.dry_run:
            _, planned = planned_for(client, folder, tags[0])
            if not out.answered(planned):
                out.text("\n".join([*planned.lines(), _summary(planned)]))
            return Exit.OK
        results = _brought_in_step(client, folder, tags, out, empty=options.yes)
    out.answered(results)
    return status_of(results)


def watch(options: argparse.Namespace, out: Output) -> int:
    """Bring it in step, and again after each change in the folder, until interrupted."""
    from watchfiles import watch as changes_of

    folder, tags = _folder(options), labels(options, tags_for_submission)
    changes = changes_of(
        folder.root,
        watch_filter=None,
        debounce=10 * _SETTLED_MS,
        step=_SETTLED_MS,
        rust_timeout=_TICK_MS,
        yield_on_timeout=True,
        ignore_permission_denied=True,
    )
    due, failure = 0.0, ""
    with engine(options) as client:
        for changed in changes:
            if not changed and monotonic() < due:
                continue
            try:
                for result in _brought_in_step(client, folder, tags, out, empty=options.yes):
                    out.answered(result)
            except CliError as error:
                if error.status is Exit.INTERRUPTED:
                    raise
                if error.message != failure:
                    out.note(error.message)
                due, failure = monotonic() + _PAUSE_SECONDS, error.message
            else:
                due, failure = monotonic() + _LOOK_AGAIN_SECONDS, ""
    return Exit.OK


def _folder(options: argparse.Namespace) -> Folder:
    path = Path(options.folder).expanduser()
    if not path.is_dir():
        raise CliError(Exit.USAGE, f"{path}: there is no such folder")
    return Folder(path)


def planned_for(client: EngineClient, folder: Folder, collection: str) -> tuple[Listing, Plan]:
    """Return the content of the folder, and the plan that brings the collection in step with it.

    Raises:
        CliError: the folder cannot be read, or the engine fails.
    """
    listing = folder.listed()
    if folder.root in listing.unreadable:
        raise CliError(Exit.FAILED, f"{folder.root}: {listing.unreadable[folder.root]}")
    return listing, plan(listing, _documents(client, folder.prefix, collection), folder.prefix)


def _documents(client: EngineClient, prefix: str, collection: str) -> Iterator[m.Document]:
    """Yield the documents of the collection from the folder, oldest first, so that new ones do not shift
    pages.
    """
    offset = 0
    while True:
        query = DocumentsQuery(
            source_path_prefix=prefix,
            tag=collection,
            sort_by="created_at",
            sort_order="asc",
            limit=_PAGE,
            offset=offset,
        )
        found = client.call(LIST_DOCUMENTS, query=query).documents
        yield from found
        if len(found) < _PAGE:
            return
        offset += _PAGE


def _brought_in_step(
    client: EngineClient, folder: Folder, tags: list[str], out: Output, *, empty: bool
) -> list[Result]:
    """Carry out the plan and report it; return the outcome of each file that was not in step.

    Raises:
        CliError: the folder has no files any more, and `empty` does not permit that.
    """
    local, planned = planned_for(client, folder, tags[0])
    if planned.removed and not local.files and not empty:
        raise CliError(
            Exit.USAGE,
            f"{folder.root} has no files, but the collection has {counted(len(planned.removed), 'document')} "
            "from it; to remove all of them, pass --yes",
        )
    destinations = [each.moved_to for each in planned.moved if each.moved_to]
    files = [local.files[source] for source in (*planned.added, *planned.replaced, *destinations)]
    with Progress(out) as progress:
        progress.began(len(files) + len(planned.removed), sum(file.size for file in files))
        results = Adding(client, tags, progress).run(files)
        failed = {result.path for result in results if result.outcome == "failed"}
        arrived = [each for each in planned.moved if each.moved_to not in failed]
        for each in (*arrived, *planned.removed):
            _take_off(client, each)
            if each.moved_to is None:
                results.append(Result(each.source, "removed", each.document_id))
                progress.ended(results[-1])
        for result in (
            *(Result(str(path), "failed", reason=why) for path, why in local.unreadable.items()),
            *(Result(str(path), "skipped", reason=why) for path, why in local.left_out.items()),
        ):
            results.append(result)
            progress.ended(result)
    if not out.as_json:
        counts = Counter(result.outcome for result in results)
        done = [f"{count} {outcome}" for outcome, count in counts.items()]
        out.text(", ".join([*done, f"{planned.unchanged} unchanged"]))
    return results


def _take_off(client: EngineClient, leaving: Leaving) -> None:
    try:
        client.call(
            REMOVE_SOURCE,
            path={"document_id": leaving.document_id},
            query=SourceQuery(source_path=leaving.source),
        )
    except CliError as error:
        if error.status is not Exit.NOT_FOUND:  # it has been removed already
            raise


def _summary(planned: Plan) -> str:
    counts = {
        "to add": len(planned.added),
        "to replace": len(planned.replaced),
        "to move": len(planned.moved),
        "to remove": len(planned.removed),
    }
    to_do = [f"{count} {what}" for what, count in counts.items() if count]
    return ", ".join([*to_do, f"{planned.unchanged} unchanged"])
