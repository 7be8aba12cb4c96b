"""`kb get`, `kb rm` and `kb move`: documents that are there already."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

import msgspec

from kb_cli.config import ClientSettings, read
from kb_cli.connect import engine
from kb_cli.exits import CliError, Exit
from kb_cli.labels import collection_and_tags, labels
from kb_cli.output import Output
from kb_contracts.api import models as m
from kb_contracts.api.operations import (
    DELETE_DOCUMENT,
    GET_DOCUMENT,
    LIST_DOCUMENTS,
    WITHOUT_CHUNKS,
    DocumentQuery,
    DocumentsQuery,
)

if TYPE_CHECKING:
    from kb_cli.client import EngineClient

_LISTED = 1_000
_CHUNKS = 200


def get(options: argparse.Namespace, out: Output) -> None:
    """Show one document with its text, or list those of a collection, with tags and from a source."""
    tags = labels(options).searched()
    if options.document is not None and (options.source_path is not None or tags):
        raise CliError(
            Exit.USAGE,
            "give a document's number or uid, or what to list: --source-path, --collection, --tags; not both",
        )
    with engine(options) as client:
        if options.document is None:
            listed = DocumentsQuery(
                source_path=options.source_path,
                tag=",".join(tags) or None,
                limit=options.limit or _LISTED,
                offset=options.offset,
            )
            _list(client.call(LIST_DOCUMENTS, query=listed), out)
            return
        query = DocumentQuery(
            chunks=not options.no_text, chunk_offset=options.offset, chunk_limit=options.limit or _CHUNKS
        )
        _one(client.call(GET_DOCUMENT, path={"document_id": options.document}, query=query), out)


def remove(options: argparse.Namespace, out: Output) -> int:
    """Remove documents, each after a yes."""
    removed: list[m.Removed] = []
    failures: list[CliError] = []
    with engine(options) as client:
        for key in options.documents:
            try:
                if options.yes or _confirmed(client, key):
                    removed.append(client.call(DELETE_DOCUMENT, path={"document_id": key}))
            except CliError as error:
                failures.append(error)
                if error.status is not Exit.NOT_FOUND:
                    break
                out.note(error.message)
    if failures and not removed:
        raise failures[-1]
    counts = [msgspec.structs.asdict(one) for one in removed]
    total = m.Removed(**{name: sum(one[name] for one in counts) for name in m.Removed.__struct_fields__})
    if not out.answered(total):
        out.text(f"Removed {total.documents} documents with {total.chunks} chunks.")
    return Exit.PARTLY if failures else Exit.OK


def move(options: argparse.Namespace, out: Output) -> None:
    """Put a document into another collection, as the server does it."""
    document = asyncio.run(_move(options))
    if not out.answered(document):
        collection, _ = collection_and_tags(document.tags)
        out.text(f"Document {document.id} is in {collection}.", style="green")


async def _move(options: argparse.Namespace) -> m.Document:
    # The server's client and not ours: a move is a conversation with retries, and it is written once.
    from kb_server import collection_moves
    from kb_server.engine_client import EngineFault
    from kb_server.engine_client.client import HttpEngine
    from kb_server.engine_faults import tool_error
    from kb_server.tool import ToolError

    settings = read(ClientSettings, options)
    port = HttpEngine(settings.engine_url, settings.api_key)
    try:
        document = await port.call(GET_DOCUMENT, path={"document_id": options.document}, query=WITHOUT_CHUNKS)
        return await collection_moves.move(port, document, options.to)
    except ToolError as error:
        raise CliError(_status(error.code), error.message) from error
    except EngineFault as fault:
        refused = tool_error(fault, document_id=options.document)
        raise CliError(_status(refused.code), refused.message) from fault
    finally:
        await port.close()


def _status(code: str) -> Exit:
    known = {
        "document_not_found": Exit.NOT_FOUND,
        "engine_unreachable": Exit.UNREACHABLE,
        "invalid_collection": Exit.USAGE,
    }
    return known.get(code, Exit.FAILED)


def _confirmed(client: EngineClient, key: str) -> bool:
    if not sys.stdin.isatty():
        raise CliError(Exit.USAGE, "removing asks for a yes on a terminal; elsewhere say --yes")
    document = client.call(GET_DOCUMENT, path={"document_id": key}, query=WITHOUT_CHUNKS)
    out = Output(stdout=sys.stderr)
    out.note(f"Remove document {document.id}, {document.title!r}, {document.chunk_count} chunks? [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _list(found: m.DocumentList, out: Output) -> None:
    if out.answered(found):
        return
    rows = [
        [one.id, one.title, one.doc_type, *collection_and_tags(one.tags), one.chunk_count, one.updated_at]
        for one in found.documents
    ]
    out.table(["id", "title", "type", "collection", "tags", "chunks", "updated"], rows)
    end = found.offset + len(rows)
    if rows and end < found.total:
        out.note(f"{end} of {found.total} documents, the newest first; go on with --offset {end}")


def _one(document: m.DocumentDetail, out: Output) -> None:
    if out.answered(document):
        return
    collection, tags = collection_and_tags(document.tags)
    out.facts(
        [
            ("document", document.id),
            ("title", document.title),
            ("type", document.doc_type),
            ("status", document.status),
            ("reason", document.status_reason),
            ("collection", collection),
            ("tags", tags),
            ("source", ", ".join(document.source_paths)),
            ("file", document.filename),
            ("bytes", document.size_bytes),
            ("pages", document.pages),
            ("chunks", document.chunk_count),
            ("version", document.version),
            ("created", document.created_at),
            ("updated", document.updated_at),
            ("uid", document.uid),
        ]
    )
    for chunk in document.chunks:
        out.text("\n" + chunk.text)
    end = document.chunk_offset + len(document.chunks)
    if document.chunks and end < document.chunk_count:
        out.note(f"{end} of {document.chunk_count} chunks; go on with --offset {end}")
