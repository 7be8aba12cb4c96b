"""The commands `kb sync` and `kb watch`.

list the source and the base ─▶ plan ─▶ send, and wait ─▶ remove sources

A moved file keeps its old source until it is ingested under the new one.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from kb_cli.add import Adding, Found, Outcome, Progress, Result, is_url, outcomes, status_of
from kb_cli.config import ClientSettings, engine, path_of, read
from kb_cli.documents import labels
from kb_cli.output import CliError, Exit, Interrupted, NotFound, Output, UsageError, counted
from kb_cli.sync.folder import Folder
from kb_cli.sync.planning import Leaving, Plan, plan
from kb_cli.sync.source import LeftOut, Listing, Source, Unavailable, Unchanged
from kb_cli.web import NotFetched
from kb_contracts.api.operations import REMOVE_SOURCE, SourceQuery
from kb_server.collection_tags import tags_for_submission

if TYPE_CHECKING:
    from kb_cli.client import EngineClient

_SETTLED_MS = 1_500
"""Time without a change before a run, in milliseconds; an editor writes a file in several steps."""
_TICK_MS = 500
_LOGIN = ("user", "password")
_S3 = ("key", "secret", "token", "region", "endpoint_url")
_PAUSE_SECONDS = 5.0
"""Pause after a failure, in seconds."""


def run(options: argparse.Namespace, out: Output) -> int:
    """Bring the collection in step with the source once."""
    origin, tags = source_of(options), labels(options, tags_for_submission)
    with engine(options) as client:
        if options.dry_run:
            _, planned, _ = planned_for(client, origin, tags[0])
            if not out.answered(planned):
                out.text("\n".join([*planned.lines(), _summary(planned)]))
            return Exit.FAILED if planned.unreadable else Exit.OK
        results = _brought_in_step(client, origin, tags, out, empty=options.yes)
    out.answered(results)
    return status_of(results)


def watch(options: argparse.Namespace, out: Output) -> int:
    """Bring it in step, and again after each change in a folder, until interrupted."""
    origin, tags = source_of(options), labels(options, tags_for_submission)
    due, failure = 0.0, ""
    with engine(options) as client:
        for changed in _changes(origin):
            if not changed and monotonic() < due:
                continue
            try:
                for result in _brought_in_step(client, origin, tags, out, empty=options.yes):
                    out.answered(result)
            except Interrupted:
                raise
            except CliError as error:
                if error.message != failure:
                    out.note(error.message)
                due, failure = monotonic() + _PAUSE_SECONDS, error.message
            else:
                due, failure = monotonic() + 60 * options.every, ""
    return Exit.OK


def _changes(origin: Source) -> Iterator[bool]:
    """Yield True after a change in a folder, and False from time to time."""
    if isinstance(origin, Folder):
        from watchfiles import watch as changes_of

        changes = changes_of(
            origin.root,
            watch_filter=None,
            debounce=10 * _SETTLED_MS,
            step=_SETTLED_MS,
            rust_timeout=_TICK_MS,
            yield_on_timeout=True,
            ignore_permission_denied=True,
        )
        yield from map(bool, changes)
    while True:
        yield False
        sleep(_TICK_MS / 1000)


def source_of(options: argparse.Namespace) -> Source:
    """Return the source that the command names. Raises CliError: there is no such source."""
    place, home = options.source, read(ClientSettings, options).home
    if "://" in place:
        _check_url(place)
    is_repository = place.startswith("git+") or (options.ref and "://" not in place)
    is_storage = place.startswith(("s3://", "webdav://", "webdavs://"))
    if options.credentials and not (is_repository or is_storage):
        raise UsageError(f"--credentials are for a repository, a bucket or WebDAV, not for {place}")
    if options.ref and not is_repository:
        raise UsageError(f"--ref names a branch of a repository (git+https://...), not of {place}")
    private = options.private
    if is_repository:
        from kb_cli.sync.repository import Repository

        return Repository(
            place, options.ref or "HEAD", home, private=private, credentials=_credentials(options, _LOGIN)
        )
    if is_storage:
        from kb_cli.sync.storage import storage

        members = _S3 if place.startswith("s3:") else _LOGIN
        return storage(place, home, private=private, credentials=_credentials(options, members))
    if is_url(place):
        from kb_cli.sync.site import Site

        try:
            return Site(
                place, home, private=private, any_site=options.any_site, whole_page=options.whole_page
            )
        except NotFetched as error:
            raise UsageError(f"{place}: {error}") from error
    path = path_of(place)
    if not path.is_dir():
        advice = "; addresses are http(s)://, git+https://, git+ssh://, s3:// and webdav(s)://"
        raise UsageError(f"{place}: there is no such folder{advice if '://' in place else ''}")
    return Folder(path)


def _check_url(url: str) -> None:
    """Refuse an invalid URL and one with a password, which the message does not repeat."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises ValueError
    except ValueError as error:
        raise UsageError("the address of the source is no URL: its host or port is invalid") from error
    if parts.password or (parts.username and parts.scheme != "git+ssh"):
        raise UsageError(
            "the address of the source has a user name or a password; for a repository over https, a bucket "
            "or WebDAV they stand in the file of --credentials"
        )


def _credentials(options: argparse.Namespace, members: Collection[str]) -> dict[str, str]:
    if not options.credentials:
        return {}
    path = path_of(options.credentials)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no JSON object of texts") from error
    if not found or not set(found).issubset(members):
        raise UsageError(f"{path}: its members are to be among {', '.join(members)}")
    return found


def planned_for(
    client: EngineClient, origin: Source, collection: str
) -> tuple[Listing, Plan, dict[str, list[str]]]:
    """Return the content of the source, the plan that brings the collection in step with it, and the SHA-256
    of the documents of each source path. Raises CliError: the source cannot be read, or the engine fails.
    """
    listing = origin.listed()
    documents = list(client.documents(source_path_prefix=origin.prefix, tag=collection))
    held: dict[str, list[str]] = defaultdict(list)
    for document in documents:
        for source in document.source_paths:
            held[source].append(document.sha256)
    return listing, plan(listing, documents, origin.prefix, origin.owns), held


def _brought_in_step(
    client: EngineClient, origin: Source, tags: list[str], out: Output, *, empty: bool
) -> list[Result]:
    """Carry out the plan and report it; return the outcome of each file that was not in step.
    Raises CliError: the source has no files any more, and `empty` does not permit that.
    """
    local, planned, held = planned_for(client, origin, tags[0])
    if planned.removed and not local.files and not empty:
        raise UsageError(
            f"{origin.name} has no files, but the collection has {counted(len(planned.removed), 'document')} "
            "from it; to remove all of them, pass --yes"
        )
    files = planned.to_send(local)
    not_sent: list[Result] = []
    with Progress(out) as progress:
        progress.began(len(files) + len(planned.removed), sum(file.size for file in files))
        results = Adding(client, tags, progress).run(_opened(origin, files, held, not_sent))
        unchanged = planned.unchanged + len(files) - len(results) - len(not_sent)
        failed = {result.path for result in (*results, *not_sent) if result.outcome in ("failed", "skipped")}
        arrived = [each for each in planned.moved if each.moved_to not in failed]
        for each in (*arrived, *planned.removed):
            _take_off(client, each)
            if each.moved_to is None:
                results.append(Result(each.source, "removed", each.document_id))
                progress.ended(results[-1])
        for result in (
            *not_sent,
            *(Result(path, "failed", reason=why) for path, why in local.unreadable.items()),
            *(Result(path, "skipped", reason=why) for path, why in local.left_out.items()),
        ):
            results.append(result)
            progress.ended(result)
    if not out.as_json:
        out.text(", ".join([*outcomes(results), *_no_steps(unchanged, planned)]))
    return results


def _opened(
    origin: Source, files: Iterable[Found], held: Mapping[str, Sequence[str]], not_sent: list[Result]
) -> Iterator[Found]:
    """Yield the files to send, each open until the next; others are added to `not_sent`."""
    for file in files:
        try:
            with origin.opened(file, held.get(file.source, ())) as ready:
                yield ready
        except Unchanged:
            continue
        except (LeftOut, Unavailable) as error:
            outcome: Outcome = "skipped" if isinstance(error, LeftOut) else "failed"
            not_sent.append(Result(file.source, outcome, reason=str(error)))


def _take_off(client: EngineClient, leaving: Leaving) -> None:
    query = SourceQuery(source_path=leaving.source)
    with suppress(NotFound):  # it has been removed already
        client.call(REMOVE_SOURCE, path={"document_id": leaving.document_id}, query=query)


def _summary(planned: Plan) -> str:
    counts = {
        "to add": len(planned.added),
        "to replace": len(planned.replaced),
        "to move": len(planned.moved),
        "to remove": len(planned.removed),
    }
    to_do = [f"{count} {what}" for what, count in counts.items() if count]
    return ", ".join([*to_do, *_no_steps(planned.unchanged, planned)])


def _no_steps(unchanged: int, planned: Plan) -> list[str]:
    """Return the counts of the files that need no step."""
    return [f"{unchanged} unchanged", *([f"{planned.skipped} of unknown formats"] if planned.skipped else [])]
