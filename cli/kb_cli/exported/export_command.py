"""`kb export`, through the engine's API, and `kb import`, into a base that no engine uses."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from kb_cli.client import EngineClient
from kb_cli.config import base_failures, engine, offline_embedder, path_of, read
from kb_cli.documents import check_collections, labels, save_original
from kb_cli.exported import layout
from kb_cli.output import CliError, Exit, NotFound, Output, counted
from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError
from kb_server.collection_tags import tags_for_search

if TYPE_CHECKING:
    from kb_engine.care.arrivals import Contents
    from kb_engine.embed.offline import OfflineEmbedder
    from kb_engine.settings import EngineSettings
    from kb_engine.store.port import Arrival

_PAGE = 500
_ATTEMPTS = 5


def export(options: argparse.Namespace, out: Output) -> None:
    """Write documents into a new folder: all of them, or by collection and tags."""
    folder = path_of(options.folder)
    tags = labels(options, tags_for_search)
    tag = ",".join(tags) or None
    with engine(options) as client:
        status = client.call(ops.GET_STATUS)  # before a folder is created: the engine may be unreachable
        check_collections(client, tags)
        try:
            folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise CliError(f"{folder}: {error.strerror}; name a new folder") from error
        written = 0
        try:
            for number in _numbers(client, tag):
                written += _export_one(client, number, folder)
            manifest = layout.Manifest(
                format=layout.FORMAT,
                made_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                engine=status.version,
                model=status.model.name,
                documents=written,
                collections=list(_descriptions(client)) if tag is None else [],
            )
            layout.write_manifest(folder, manifest)
        except OSError as error:
            raise CliError(f"{error.filename}: {error.strerror}") from error
        except layout.NotAnExport as error:
            raise CliError(str(error)) from error
    if not out.answered({"folder": str(folder), "documents": written}):
        out.text(f"{counted(written, 'document')} exported to {folder}", style="green")


def _numbers(client: EngineClient, tag: str | None) -> Iterator[int]:
    """Yield the numbers of all documents. Removals shift pages: all are read until no number is new."""
    known: set[int] = set()
    while True:
        before = len(known)
        for document in client.documents(tag=tag):
            if document.id not in known:
                known.add(document.id)
                yield document.id
        if len(known) == before:
            return


def _export_one(client: EngineClient, number: int, folder: Path) -> bool:
    """Export one document; False if it no longer exists."""
    for _ in range(_ATTEMPTS):
        try:
            document = _get(client, number, 0)
            chunks = list(document.chunks)
            while len(chunks) < document.chunk_count:
                more = _get(client, number, len(chunks))
                if not more.chunks or more.version != document.version:
                    break
                chunks += more.chunks
        except NotFound:
            return False
        if document.doc_type == "note" and document.text is UNSET:
            raise CliError("the engine is too old to be exported: it does not give the text of notes")
        if len(chunks) == document.chunk_count:
            layout.write_document(folder, document, chunks, partial(save_original, client, document))
            return True
    raise CliError(f"document {number} changes while it is read; try again")


def _get(client: EngineClient, number: int, offset: int) -> m.DocumentDetail:
    query = ops.DocumentQuery(chunk_offset=offset, chunk_limit=_PAGE, text=offset == 0)
    return client.call(ops.GET_DOCUMENT, path={"document_id": number}, query=query)


def _descriptions(client: EngineClient) -> Iterator[layout.Description]:
    """Yield the descriptions of collections; none if the engine does not serve RAGler's operations."""
    try:
        listed = client.call(ops.LIST_COLLECTIONS).collections
    except NotFound:
        return
    for each in listed:
        if each.description:
            detail = client.call(ops.GET_COLLECTION, path={"collection_id": each.id})
            description = r.CollectionRequest(
                name=detail.name,
                description=detail.description,
                created_by=detail.created_by if "@" in detail.created_by else None,
                target_audience=detail.target_audience or None,
                usage_scenarios=detail.usage_scenarios or None,
            )
            yield layout.Description(each.id, description)


def import_(options: argparse.Namespace, out: Output) -> int:
    """Ingest the documents of an export into the base of the settings, except those that it already has."""
    from kb_engine.settings import EngineSettings

    settings = read(EngineSettings, options)
    folder = path_of(options.place)
    embedder = offline_embedder(settings)
    with base_failures(layout.NotAnExport, advice="; run it again to continue"):
        manifest = layout.read_manifest(folder)
        with embedder:
            counts = asyncio.run(_import(settings, embedder, folder, manifest, out))
    if not out.answered(counts):
        here = f", {counts['here']} are here already" if counts["here"] else ""
        out.text(f"{counted(counts['imported'], 'document')} imported{here}", style="green")
        if counts["refused"]:
            out.note(f"{counts['refused']} could not be imported; see the messages above")
    return Exit.PARTLY if counts["refused"] else Exit.OK


async def _import(
    settings: EngineSettings, embedder: OfflineEmbedder, folder: Path, manifest: layout.Manifest, out: Output
) -> dict[str, int]:
    from kb_engine.care.arrivals import Arrivals
    from kb_engine.embed.protocol import TextRefused

    counts = {"imported": 0, "here": 0, "refused": 0}
    found = 0
    async with Arrivals.opened(settings, embedder, layout.uids_in(folder)) as base:
        for path in layout.documents_in(folder):
            found += 1
            try:
                document, text = layout.read_document(path)
                arriving = _arrival(document, text, embedder.count_tokens)
                is_new = await base.take_in(*arriving, layout.original_of(path, document))
                counts["imported" if is_new else "here"] += 1
            except (layout.NotAnExport, TextRefused) as error:
                out.note(f"{path}: {error}" if isinstance(error, TextRefused) else str(error))
                counts["refused"] += 1
        for each in manifest.collections:
            try:
                await base.describe(each.id, each.description)
            except EngineError as error:
                out.note(f"The collection {each.description.name} is not described: {error.detail}")
    if found < manifest.documents:
        out.note(f"the folder has {found} of {counted(manifest.documents, 'exported document')}")
        counts["refused"] += manifest.documents - found
    return counts


def _arrival(
    document: layout.ExportedDocument, text: str, count_tokens: Callable[[str], int]
) -> tuple[Arrival, Contents]:
    """Return the document in the form that the engine ingests."""
    from kb_engine.care.arrivals import Contents
    from kb_engine.store.port import Arrival, PreparedChunk

    members = {name: getattr(document, name) for name in Arrival.__dataclass_fields__ if name != "text"}
    passages = [(each, text[each.start : each.end]) for each in document.passages]
    chunks = [
        PreparedChunk(passage, each.page, each.heading, each.start, each.end, count_tokens(passage))
        for each, passage in passages
    ]
    return (
        Arrival(**members, text=text if document.is_note else None),
        Contents(
            chunks,
            document.extraction_method,
            document.pages,
            document.status_reason,
            document.fidelity or None,
        ),
    )
