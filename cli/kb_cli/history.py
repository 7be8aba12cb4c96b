"""`kb history`: earlier versions of documents, listed, shown, restored and purged."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from msgspec import UNSET

from kb_cli.config import engine
from kb_cli.documents import collection_and_tags
from kb_cli.output import CliError, NotFound, Output, UsageError, counted
from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_server.note_edits import difference

if TYPE_CHECKING:
    from kb_cli.client import EngineClient


def run(options: argparse.Namespace, out: Output) -> None:
    """Act on the versions of a document, or list removed documents."""
    _check(options)
    with engine(options) as client:
        if options.purge:
            _purge(client, options, out)
        elif options.restore:
            _restore(client, options, out)
        elif options.version is not None:
            _show(client, options, out)
        else:
            _list(client, options, out)


def _check(options: argparse.Namespace) -> None:
    if options.document is None and (options.restore or options.purge or options.diff):
        raise UsageError("name a document")
    if sum((options.restore, options.purge, options.diff)) > 1:
        raise UsageError("--diff, --restore and --purge exclude each other")
    if options.diff and options.version is None:
        raise UsageError("--diff needs a version")
    if options.purge and options.version is not None:
        raise UsageError("--purge deletes all versions; leave out the version")


def _list(client: EngineClient, options: argparse.Namespace, out: Output) -> None:
    query = ops.PageQuery(limit=options.limit, offset=options.offset)
    if options.document is None:
        found = client.call(ops.LIST_TRASH, query=query)
    else:
        found = client.call(ops.LIST_VERSIONS, path={"document_id": options.document}, query=query)
    if out.answered(found):
        return
    rows = [
        [
            each.document_id,
            each.version,
            "removed" if each.removed else "replaced",
            out.when(each.kept_at),
            each.title,
            *collection_and_tags(each.tags),
            out.when(each.expires_at),
        ]
        for each in found.versions
    ]
    out.table(["id", "version", "was", "at", "title", "collection", "tags", "kept until"], rows)
    end = found.offset + len(rows)
    if rows and end < found.total:
        out.note(f"{end} of {counted(found.total, 'version')}, latest first; continue with --offset {end}")


def _show(client: EngineClient, options: argparse.Namespace, out: Output) -> None:
    past, text = _version(client, options.document, options.version)
    if options.diff:
        query = ops.DocumentQuery(chunks=False, text=True)
        now = client.call(ops.GET_DOCUMENT, path={"document_id": options.document}, query=query)
        if now.text is UNSET or past.doc_type != "note":
            raise CliError("only texts of notes can be compared")
        changes = difference(text, now.text)
        if not out.answered({"document": past.document_id, "version": past.version, "difference": changes}):
            out.text(changes or "The text is the same.")
        return
    if out.answered(past):
        return
    collection, tags = collection_and_tags(past.tags)
    out.facts(
        [
            ("document", past.document_id),
            ("version", past.version),
            ("removed" if past.removed else "replaced", out.when(past.kept_at)),
            ("kept until", out.when(past.expires_at)),
            ("title", past.title),
            ("collection", collection),
            ("tags", tags),
            ("source", ", ".join(past.source_paths)),
            ("file", past.filename),
            ("uid", past.uid),
        ]
    )
    out.text("\n" + text)


def _version(client: EngineClient, document: str, version: int) -> tuple[m.PastVersionDetail, str]:
    """Return a version, and all of its text."""
    parts: list[str] = []
    read = 0
    while True:
        query = ops.VersionQuery(text_offset=read, text_limit=ops.MAX_TEXT_SLICE)
        found = client.call(ops.GET_VERSION, path={"document_id": document, "version": version}, query=query)
        parts.append(found.text)
        read += len(found.text)
        if read >= found.text_length or not found.text:
            return found, "".join(parts)


def _restore(client: EngineClient, options: argparse.Namespace, out: Output) -> None:
    version = options.version
    if version is None:
        path = {"document_id": options.document}
        latest = client.call(ops.LIST_VERSIONS, path=path, query=ops.PageQuery(limit=1)).versions
        if not latest:
            raise NotFound(f"no earlier version of document {options.document} is kept")
        version = latest[0].version
    place = {"document_id": options.document, "version": version}
    restored = client.call(ops.RESTORE_VERSION, path=place)
    if not out.answered(restored):
        text = f"Document {restored.id} is restored to version {version}, as version {restored.version}."
        out.text(text, style="green")


def _purge(client: EngineClient, options: argparse.Namespace, out: Output) -> None:
    purged = client.call(ops.PURGE_VERSIONS, path={"document_id": options.document})
    if not out.answered(purged):
        out.text(f"Deleted {counted(purged.versions, 'version')}.")
