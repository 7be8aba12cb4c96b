"""The commands on documents: `kb search`, `get`, `rm`, `move`, `tag`, `addnote` and `updatenote`.

Collections and tags follow the server's rules; `--tags collection:memory` is the same as `--collection
memory`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from kb_cli.config import client_settings, engine, path_of
from kb_cli.excerpt import excerpt
from kb_cli.explained import reason
from kb_cli.output import (
    CliError,
    Exit,
    NotFound,
    Output,
    Unreachable,
    UsageError,
    confirmed,
    counted,
    did_you_mean,
)
from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.api.ragler import PREFIX
from kb_contracts.semantics.documents import fidelity_in_words
from kb_contracts.semantics.search import good_matches, with_header
from kb_contracts.semantics.sources import what_stays
from kb_server import collection_tags
from kb_server.tool import ToolError

if TYPE_CHECKING:
    from kb_cli.client import EngineClient


_SHORT_CHARS = 400
_MOVE_ERRORS: dict[str, type[CliError]] = {
    "document_not_found": NotFound,
    "engine_unreachable": Unreachable,
    "invalid_collection": UsageError,
}
_LISTED = 1_000
_CHUNKS = 200


def labels(options: argparse.Namespace, place: Callable[[str | None, Sequence[str]], list[str]]) -> list[str]:
    """Return the tags for `--collection` and `--tags`, by the server's rule `place`.
    Raises CliError: a name or a tag is invalid, or they name more than one collection.
    """
    listed = [part.strip() for each in options.tags or [] for part in each.split(",")]
    given = [tag for tag in listed if tag]
    named = [tag.removeprefix(PREFIX) for tag in given if tag.startswith(PREFIX)]
    if options.collection is not None:
        named.insert(0, options.collection)
    if len(set(named)) > 1:
        raise UsageError(f"one collection at a time, not {' and '.join(dict.fromkeys(named))}")
    try:
        return place(named[0] if named else None, [tag for tag in given if not tag.startswith(PREFIX)])
    except ToolError as error:
        raise UsageError(error.message) from error


def check_collections(client: EngineClient, tags: Sequence[str], *, advice: str = "") -> None:
    """Check that the collections among `tags` exist; conventional ones always do.
    Raises NotFound: a collection does not exist; `advice` ends the message.
    """
    for tag in tags:
        name = tag.removeprefix(PREFIX)
        if name == tag or name in collection_tags.CONVENTIONAL:
            continue
        # Documents are requested first, because requests for collections have a rate limit.
        if client.call(ops.LIST_DOCUMENTS, query=ops.DocumentsQuery(tag=tag, limit=1)).total:
            continue
        known = [each.name for each in client.call(ops.LIST_COLLECTIONS).collections]
        if name not in known:
            raise no_collection(name, known, advice)


def note_new_collection(client: EngineClient, tags: Sequence[str], out: Output) -> None:
    """Note that the collection among `tags` has no documents yet, and the nearest other name."""
    name = tags[0].removeprefix(PREFIX)
    if name in collection_tags.CONVENTIONAL or out.as_json:
        return
    with client.optional():  # a key may write without reading
        found = client.call(ops.LIST_TAGS, query=ops.TagsQuery(prefix=PREFIX, limit=_LISTED))
        known = {each.tag.removeprefix(PREFIX) for each in found.tags}
        if name not in known and found.total <= _LISTED:  # of more, it may be a later one
            hint = did_you_mean(name, known.union(collection_tags.CONVENTIONAL))
            out.note(f"the collection {name!r} has no documents yet{hint}")


def no_collection(name: str, known: Sequence[str], advice: str = "") -> NotFound:
    """No collection has this name; `known` are the names of all."""
    hint = did_you_mean(name, known) or "; `kb collections` lists them"
    return NotFound(f"there is no collection {name!r}{hint}{advice}")


def collection_and_tags(tags: Sequence[str]) -> tuple[str, str]:
    """Return a document's collection and its other tags, for people."""
    placed = collection_tags.split_tags(tags)
    return placed.collection or "", ", ".join(placed.tags)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_original(client: EngineClient, document: m.Document, path: Path) -> None:
    """Write the file that a document was made of, completely or not at all. Raises `CliError`."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            client.read_original(document.id, file)
        if sha256_of(partial) != document.sha256:
            raise CliError(
                f"the file of document {document.id} differs from the one sent: its SHA-256 is wrong"
            )
        partial.replace(path)
    except OSError as error:
        raise CliError(f"{error.filename or path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def search(options: argparse.Namespace, out: Output) -> None:
    """Print the matching passages, best first."""
    query = " ".join(options.query)
    if not query.strip():
        raise UsageError("a search needs words or a question")
    if options.fts_only and options.mode not in (None, "fts"):
        raise UsageError(f"--fts-only and --mode {options.mode} exclude each other")
    request = m.SearchRequest(
        query=query,
        top=options.top,
        tags=labels(options, collection_tags.tags_for_search),
        doc_type=options.doc_type,
        mode=options.mode,
        fts_only=True if options.fts_only else None,
        min_score=options.min_score,
        explain=options.explain,
    )
    try:
        request = msgspec.convert(msgspec.to_builtins(request), m.SearchRequest)
    except msgspec.ValidationError as error:
        raise UsageError(str(error)) from error
    with engine(options) as client:
        answer = client.call(ops.SEARCH, body=request)
        if not answer.results:
            check_collections(client, request.tags)
    if out.answered(answer):
        return
    if answer.incomplete:
        out.note(f"incomplete: {answer.incomplete}")
    if any(result.without_phrase is True for result in answer.results):
        out.text("no passage holds the phrase; these are the best without it\n", style="yellow")
    elif answer.results and answer.weak:
        out.text("weak: nothing matches well; these are the nearest passages\n", style="yellow")
    near = answer.results if options.full else answer.results[: good_matches(answer.results)]
    for place, result in enumerate(near, 1):
        collection, tags = collection_and_tags(result.tags)
        chunk, document = result.chunk, result.document
        heading = (
            f"{result.score:.2f}",
            document.title,
            chunk.heading,
            f"page {chunk.page}" if chunk.page else None,
            f"document {document.id}",
            f"in {collection}" if collection else None,
            tags,
        )
        out.text(f"{place}. {' · '.join(part for part in heading if part)}", style="bold")
        if (explain := result.explain) is not None:
            meaning = "no say" if explain.cosine is None else f"{explain.cosine:.3f}"
            words = "no say" if explain.bm25 is None else f"{explain.bm25:.3f}"
            weighed = f"meaning {meaning} × {explain.weight:g}, words {words}"
            out.text(f"   {reason(query, result)}", style="dim")
            out.text(f"   {weighed} (saturation {explain.saturation:g})", style="dim")
            if explain.relevance is not UNSET:
                out.text(f"   reranked: {explain.relevance:.3f}", style="dim")
            if (ranking := explain.ranking) is not UNSET:
                shares = msgspec.structs.asdict(ranking.weights).items()
                parts = (f"{name} {getattr(ranking, name):.3f} × {share:g}" for name, share in shares)
                out.text(f"   {', '.join(parts)}", style="dim")
        text = with_header(chunk)
        if not options.full and len(text) > _SHORT_CHARS:
            text = excerpt(text, query, _SHORT_CHARS) + " (--full shows all)"
        lines = [line for line in text.strip().splitlines() if options.full or line.strip()]
        out.text("\n".join(f"   {line}" for line in lines) + "\n")
    if not answer.results:
        out.note("Nothing found.")
    if far := len(answer.results) - len(near):
        out.note(f"{counted(far, 'more result')} with less than half of the best score; --full shows all.")


def get(options: argparse.Namespace, out: Output) -> None:
    """Show one document with its text, or list documents by collection, tags or source."""
    tags = labels(options, collection_tags.tags_for_search)
    if options.document is not None and (options.source_path is not None or tags):
        raise UsageError(
            "give a document's number or uid, or a filter (--source-path, --collection, --tags), not both"
        )
    if options.document is None and options.original is not None:
        raise UsageError("--original saves the file of one document: give its number or uid")
    with engine(options) as client:
        if options.document is None:
            listed = ops.DocumentsQuery(
                source_path=options.source_path,
                tag=",".join(tags) or None,
                limit=options.limit or _LISTED,
                offset=options.offset,
            )
            found = client.call(ops.LIST_DOCUMENTS, query=listed)
            if not found.total and not out.as_json:  # a script reads an empty list
                check_collections(client, tags)
            _show_list(found, out)
            return
        query = ops.DocumentQuery(
            chunks=not options.no_text, chunk_offset=options.offset, chunk_limit=options.limit or _CHUNKS
        )
        try:
            document = client.call(ops.GET_DOCUMENT, path={"document_id": options.document}, query=query)
        except NotFound as error:
            if _is_in_trash(client, options.document):
                removed = f"document {options.document} was removed"
                advice = f"kb history {options.document} --restore brings it back"
                raise NotFound(f"{removed}; {advice}") from error
            raise
        if options.original is not None:
            if document.doc_type == "note":
                raise CliError(
                    f"document {document.id} was sent as text, no file; see it with kb get {document.id}"
                )
            save_original(client, document, path_of(options.original))
    if out.answered(document):
        return
    collection, others = collection_and_tags(document.tags)
    out.facts(
        [
            ("document", document.id),
            ("title", document.title),
            ("type", document.doc_type),
            ("status", document.status),
            ("reason", document.status_reason),
            ("reading", "; ".join(fidelity_in_words(document.fidelity)) if document.fidelity else None),
            ("file kept", "yes" if document.original else None),
            ("collection", collection),
            ("tags", others),
            ("source", ", ".join(document.source_paths)),
            ("file", document.filename),
            ("bytes", document.size_bytes),
            ("pages", document.pages),
            ("passages", document.chunk_count),
            ("version", document.version),
            ("created", out.when(document.created_at)),
            ("updated", out.when(document.updated_at)),
            ("uid", document.uid),
        ]
    )
    for chunk in document.chunks:
        out.text("\n" + with_header(chunk))
    end = document.chunk_offset + len(document.chunks)
    if document.chunks and end < document.chunk_count:
        out.note(f"{end} of {counted(document.chunk_count, 'passage')}; continue with --offset {end}")


def _is_in_trash(client: EngineClient, key: str) -> bool:
    try:
        kept = client.call(
            ops.LIST_VERSIONS, path={"document_id": key}, query=ops.PageQuery(limit=1)
        ).versions
    except CliError:
        return False
    return bool(kept) and kept[0].removed


def _show_list(found: m.DocumentList, out: Output) -> None:
    if out.answered(found):
        return
    rows = []
    for one in found.documents:
        placed, when = collection_and_tags(one.tags), out.when(one.updated_at)
        rows.append([one.id, one.title, one.doc_type, *placed, one.chunk_count, when])
    if not rows:
        out.note(f"No document from offset {found.offset} on." if found.total else "No document found.")
        return
    out.table(["id", "title", "type", "collection", "tags", "passages", "updated"], rows)
    end = found.offset + len(rows)
    if end < found.total:
        out.note(f"{end} of {counted(found.total, 'document')}, newest first; continue with --offset {end}")


def remove(options: argparse.Namespace, out: Output) -> int:
    """Remove documents, each after a confirmation."""
    removed: list[m.Removed] = []
    keys: list[str] = []
    failures: list[CliError] = []
    with engine(options) as client:
        for place, key in enumerate(options.documents, 1):
            try:
                if options.yes or _confirmed(client, key):
                    query = ops.DeleteQuery(purge=options.purge)
                    removed.append(client.call(ops.DELETE_DOCUMENT, path={"document_id": key}, query=query))
                    keys.append(key)
            except CliError as error:
                failures.append(error)
                out.note(f"kb rm: {error.message}")
                if not isinstance(error, NotFound):
                    if untried := options.documents[place:]:
                        out.note(f"kb rm: stopped here; not removed: {', '.join(untried)}")
                    break
    if failures and not removed:
        return failures[-1].status
    total = m.Removed(
        documents=sum(one.documents for one in removed),
        chunks=sum(one.chunks for one in removed),
        bytes=sum(one.bytes for one in removed),
    )
    if not out.answered(total):
        held = f"{counted(total.documents, 'document')} with {counted(total.chunks, 'passage')}"
        out.text(f"Removed {held}.")
        if total.documents and not options.purge:
            others = f"; likewise {', '.join(keys[1:])}" if keys[1:] else ""
            out.note(f"kb history {keys[0]} --restore restores it{others}.")
    return Exit.PARTLY if failures else Exit.OK


def move(options: argparse.Namespace, out: Output) -> None:
    """Put a document into another collection, as the server does; into a new one only with `--new`."""
    try:
        tag = collection_tags.tag_of(options.to)
    except ToolError as error:
        raise UsageError(error.message) from error
    if not options.new:
        with engine(options) as client:
            check_collections(client, [tag], advice="; --new makes it")
    document = asyncio.run(_move(options))
    if not out.answered(document):
        collection, _ = collection_and_tags(document.tags)
        out.text(f"Document {document.id} is in {collection}.", style="green")


async def _move(options: argparse.Namespace) -> m.Document:
    # The server's client and not ours: a move has several requests with retries, implemented only there.
    from kb_server import collection_moves
    from kb_server.engine_client.client import HttpEngine
    from kb_server.engine_client.errors import EngineFault
    from kb_server.engine_client.port import read_document
    from kb_server.engine_faults import tool_error
    from kb_server.settings import engine_tls

    settings = client_settings(options)
    tls = engine_tls(settings.engine_ca)
    port = HttpEngine(settings.engine_url, settings.api_key, tls=tls)
    try:
        document = await read_document(port, options.document)
        return await collection_moves.move(port, document, options.to)
    except (ToolError, EngineFault) as error:
        words = error if isinstance(error, ToolError) else tool_error(error, document_id=options.document)
        raise _MOVE_ERRORS.get(words.code, CliError)(words.message) from error
    finally:
        await port.close()


def _confirmed(client: EngineClient, key: str) -> bool:
    document = client.document(key)
    held = counted(document.chunk_count, "passage")
    return confirmed(f"Remove document {document.id}, {document.title!r}, {held}?")


def tag(options: argparse.Namespace, out: Output) -> None:
    """Add tags to a document and remove tags from it."""
    if options.document is None:
        raise UsageError(
            "name a document: kb tag ID +TAG -TAG; kb get --tags TAG lists the documents of a tag"
        )
    changes = options.changes[options.changes[:1] == ["--"] :]
    order = "kb tag takes its options, one document, and then +TAG or -TAG"
    for change in changes:
        if change[:1] not in ("+", "-"):
            raise UsageError(f"{change!r}: {order}")
    try:
        added = collection_tags.validate_tags([change[1:] for change in changes if change[0] == "+"])
        removed = collection_tags.validate_tags([change[1:] for change in changes if change[0] == "-"])
    except ToolError as error:
        raise UsageError(error.message) from error
    if both := [each for each in added if each in removed]:
        raise UsageError(f"{both[0]!r} is both added and removed; give one of the two")
    path = {"document_id": options.document}
    with engine(options) as client:
        document: m.Document = client.document(options.document)
        for each in removed:
            if each[0] == "-" and each not in document.tags:  # an option in the wrong place
                raise UsageError(f"'-{each}': {order}")
        for each in removed:
            if each in document.tags:
                document = client.call(ops.REMOVE_TAG, path={**path, "tag": each})
            else:
                out.note(f"Document {document.id} does not have the tag {each}.")
        if added:
            document = client.call(ops.ADD_TAGS, path=path, body=m.TagsRequest(tags=added))
    if not out.answered(document):
        out.text(f"Tags of document {document.id}: {collection_and_tags(document.tags)[1] or 'none'}")


def add_note(options: argparse.Namespace, out: Output) -> int:
    """Ingest a note, and wait until it can be found."""
    tags = labels(options, collection_tags.tags_for_submission)
    note = m.NoteRequest(
        text=_note_text(options.text),
        title=options.title,
        tags=tags,
        source_path=options.source_path,
        # As in the server: a repeated note is a duplicate within its collection, not across collections.
        dedup_scope=tags[0],
    )
    with engine(options) as client:
        note_new_collection(client, tags, out)
        job = client.call(ops.CREATE_JOB, body=note)
        if not options.no_wait:
            job = client.wait_for_job(job.id)
        document = None
        if job.outcome == "replaced" and not out.as_json:
            document = client.document(job.document_id)
    return _report_job(job, out, document)


def update_note(options: argparse.Namespace, out: Output) -> int:
    """Replace a note's text in place, and wait until it can be found."""
    patch = m.NotePatch(
        text=_note_text(options.text), title=options.title, expected_version=options.expected_version
    )
    with engine(options) as client:
        waiting = ops.NoteQuery(wait=0) if options.no_wait else ops.NoteQuery()
        before = None
        try:
            before = client.document(options.document_id).version
        except Unreachable:  # a silent engine costs one time-out, not two
            raise
        except CliError:  # the update reports any other; and a key may write without reading
            pass
        changed = client.call(
            ops.PATCH_NOTE, path={"document_id": options.document_id}, query=waiting, body=patch
        )
        if isinstance(changed, m.Job) and not options.no_wait:
            changed = client.wait_for_job(changed.id)
            if changed.status == "completed":
                changed = client.document(options.document_id)
    if isinstance(changed, m.Job):
        return _report_job(changed, out)
    if not out.answered(changed):
        outcome = "has this text already" if changed.version == before else "is updated"
        out.text(f"Note {changed.id} {outcome} (version {changed.version}).", style="green")
    return Exit.OK


def _note_text(given: Sequence[str]) -> str:
    """Return the text of a note: the given words, or all of stdin for `-`."""
    text = sys.stdin.read() if given == ["-"] else " ".join(given)
    if not text.strip():
        raise UsageError("a note needs a text")
    if len(text) > m.MAX_NOTE_CHARS:
        raise UsageError(f"a note has at most {m.MAX_NOTE_CHARS} characters; add it as a file with `kb add`")
    return text


def _report_job(job: m.Job, out: Output, document: m.Document | None = None) -> int:
    if out.answered(job):
        pass
    elif job.status == "completed":
        collection, _ = collection_and_tags(job.tags)
        same = "; the same text was there already" if job.deduplicated else ""
        if job.outcome == "replaced":
            same += f"; {what_stays(job, document) or 'the earlier document of its source is replaced'}"
        out.text(f"Document {job.document_id} in {collection}{same}.", style="green")
    elif job.error is None:
        out.text(f"Job {job.id} is {job.status}.")
    if job.error is not None and not out.as_json:
        raise CliError(f"job {job.id} failed: {job.error.message} ({job.error.code})")
    return Exit.FAILED if job.status in ("failed", "cancelled") else Exit.OK
