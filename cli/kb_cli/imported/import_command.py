"""The command `kb import`.

an export of kb ─▶ kb_cli.exported, into a base that no engine uses
a folder ─▶ list it and the base, as kb sync does ─▶ read new or changed files ─▶ send, and wait
a file of memories ─▶ send, and wait
bookmarks ─▶ fetch new addresses, as kb add URL does ─▶ send, and wait

Nothing is removed. Unchanged files are not sent again, and memories that were sent already are recognised by
their content: so an interrupted or failed import can be repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import msgspec

from kb_cli import foreign_tags
from kb_cli.add import Adding, Found, Progress, Result, Written, fetched, is_url, outcomes, status_of
from kb_cli.config import engine, path_of
from kb_cli.documents import labels
from kb_cli.exported import export_command
from kb_cli.imported import NAMES, Kind, NotOfKind, bookmarks, markdown, memories
from kb_cli.imported.detection import kind_of
from kb_cli.output import CliError, Exit, Output, UsageError
from kb_cli.properties import Details
from kb_cli.sync.folder import Folder
from kb_cli.sync.sync_command import planned_for
from kb_contracts.api import models as m
from kb_server.collection_tags import tags_for_submission

T = TypeVar("T")

_MEMORIES_GO_TO = "memory"


class Imported(msgspec.Struct, frozen=True):
    """The result or the plan of an import; `skipped` files are of formats that kb does not read."""

    kind: Kind
    results: list[Result]
    unchanged: int = 0
    skipped: int = 0


class Planned(msgspec.Struct, frozen=True):
    """One file or memory to send."""

    path: str
    title: str | None
    tags: Sequence[str]
    notes: Sequence[str]

    def line(self) -> str:
        """Return one line, for people."""
        return "\t".join(filter(None, ("add", self.path, ", ".join(self.tags), "; ".join(self.notes))))


def run(options: argparse.Namespace, out: Output) -> int:
    """Import the named file or folder, by its kind."""
    place = path_of(options.place)
    kind: Kind = options.kind or kind_of(place)
    if kind == "kb":
        if options.dry_run or options.collection or options.tags:
            raise UsageError("an export of kb brings its collections and tags along, and has no --dry-run")
        return export_command.import_(options, out)
    if not out.as_json:
        out.text(f"{place} is {NAMES[kind]}")
    if kind == memories.KIND:
        return _import_memories(place, options, out)
    if kind == bookmarks.KIND:
        return _import_bookmarks(place, options, out)
    return _import_folder(place, kind, options, out)


def _read(read: Callable[[Path], T], place: Path, kind: Kind) -> T:
    try:
        return read(place)
    except NotOfKind as error:
        raise CliError(f"{place} is not {NAMES[kind]}: {error}") from error
    except OSError as error:
        raise CliError(f"{place}: {error.strerror}") from error


def _import_memories(place: Path, options: argparse.Namespace, out: Output) -> int:
    tags = labels(options, lambda name, tags: tags_for_submission(name or _MEMORIES_GO_TO, tags))
    found = list(memories.texts(_read(memories.read, place, memories.KIND), len(tags)))
    texts = [each for each in found if isinstance(each, Written)]
    refused = [each for each in found if isinstance(each, Result)]
    if options.dry_run:
        return _report_plan(memories.KIND, texts, refused, 0, out)
    with engine(options) as client, Progress(out) as progress:
        results = _sent(Adding(client, tags, progress), texts, refused, progress)
    return _report(Imported(memories.KIND, results), out)


def _import_bookmarks(place: Path, options: argparse.Namespace, out: Output) -> int:
    tags = labels(options, tags_for_submission)
    found = _read(bookmarks.read, place, bookmarks.KIND)
    refused = [
        Result(each.url, "skipped", reason="it is no address of the web")
        for each in found
        if not is_url(each.url)
    ]
    with engine(options) as client:
        stored = client.documents(source_path_prefix="http", tag=tags[0])
        held = {path for one in stored for path in one.source_paths}
        new = [
            Written(each.url, "", _details(each, len(tags)))
            for each in found
            if is_url(each.url) and each.url not in held
        ]
        unchanged = len(found) - len(refused) - len(new)
        if options.dry_run:
            return _report_plan(bookmarks.KIND, new, refused, unchanged, out)
        failed: list[Result] = []
        with Progress(out) as progress:
            progress.began(len(found) - unchanged, 0)
            results = Adding(client, tags, progress).run(_pages(new, options, failed))
            for result in (*refused, *failed):
                progress.ended(result)
    return _report(Imported(bookmarks.KIND, [*results, *refused, *failed], unchanged), out)


def _details(mark: bookmarks.Bookmark, taken: int) -> Details:
    kept, left_out, notes = foreign_tags.sorted_out(mark.tags, taken)
    saved = {"saved": mark.time} if mark.time else {}
    metadata = {"imported_from": bookmarks.KIND, **saved, **left_out}
    return Details(mark.title[: m.MAX_TITLE_CHARS] or None, kept, metadata, notes)


def _pages(new: Iterable[Written], options: argparse.Namespace, failed: list[Result]) -> Iterator[Found]:
    """Yield the page of each address, fetched until the next one; failures are added to `failed`."""
    for each in new:
        with TemporaryDirectory(prefix="kb-import-") as folder:
            pages, failures = fetched(
                [each.label], Path(folder), private=options.private, whole_page=options.whole_page
            )
            failed += failures
            for page in pages:
                notes = [*page.details.notes, *each.details.notes]
                yield replace(page, details=replace(each.details, notes=notes))


def _import_folder(place: Path, kind: markdown.Dialect, options: argparse.Namespace, out: Output) -> int:
    if not place.is_dir():
        raise UsageError(f"{place} is no folder")
    folder, tags = Folder(place), labels(options, tags_for_submission)
    with engine(options) as client:
        listing, plan, _ = planned_for(client, folder, tags[0])
        refused = [
            *(Result(path, "failed", reason=why) for path, why in listing.unreadable.items()),
            *(Result(path, "failed", reason=why) for path, why in listing.left_out.items()),
        ]
        files = []
        for file in plan.to_send(listing):
            name = str(file.path.relative_to(folder.root))
            details = markdown.details_of(file.path, name, kind, len(tags))
            files.append(replace(file, details=details))
        if options.dry_run:
            return _report_plan(kind, files, refused, plan.unchanged, out)
        with Progress(out) as progress:
            results = _sent(Adding(client, tags, progress), files, refused, progress)
    return _report(Imported(kind, results, plan.unchanged, plan.skipped), out)


def _sent(
    adding: Adding, items: Sequence[Found | Written], refused: list[Result], progress: Progress
) -> list[Result]:
    sizes = [item.size if isinstance(item, Found) else 0 for item in items]
    progress.began(len(items) + len(refused), sum(sizes))
    for result in refused:
        progress.ended(result)
    return [*refused, *adding.run(items)]


def _report(done: Imported, out: Output) -> Exit:
    if not out.answered(done):
        counts = [
            *outcomes(done.results),
            *([f"{done.unchanged} unchanged"] if done.unchanged else []),
            *([f"{done.skipped} of unknown formats"] if done.skipped else []),
        ]
        out.text(", ".join(counts) or "Nothing is there.")
    return status_of(done.results)


def _report_plan(
    kind: Kind, items: Sequence[Found | Written], refused: list[Result], unchanged: int, out: Output
) -> Exit:
    plan = [_planned(item.label, item.details) for item in items]
    if not out.answered({"kind": kind, "planned": plan, "refused": refused, "unchanged": unchanged}):
        counts = f"{len(plan)} to send, {unchanged} unchanged, {len(refused)} refused"
        lines = [*(each.line() for each in plan), *(each.line() for each in refused)]
        out.text("\n".join([*lines, counts]))
    return Exit.OK


def _planned(label: str, details: Details) -> Planned:
    return Planned(label, details.title, list(details.tags), list(details.notes))
