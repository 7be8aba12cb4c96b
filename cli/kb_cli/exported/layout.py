"""The files of an export, written and read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from kb_cli.documents import sha256_of
from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.semantics.search import headings_of
from kb_server.collection_tags import split_tags

S = TypeVar("S", bound=msgspec.Struct)

FORMAT = 1
MANIFEST = "kb-export.json"
ORIGINALS = "originals"

_NAME_CHARS = 60
_NO_COLLECTION = "without-collection"
_UNSAFE = re.compile(r"[^\w.-]+")
_BREAK = "\n"

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class NotAnExport(Exception):
    """The input is not an export, or was changed later; the message names the file and has advice."""


class Place(msgspec.Struct, frozen=True):
    """The place of a passage: start and end offset in the document's text; headings with the header row."""

    start: m.Count
    end: m.Count
    page: int | None
    heading: str | None


class ExportedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document without its text. `sha256` is that of the original, `text_sha256` that of the text file
    beside it; `original` is the relative path of the original file, if it was kept.
    """

    id: int
    uid: Annotated[str, Meta(pattern="^[0-9a-f-]{36}$")]
    title: m.Title
    doc_type: m.DocType
    format: str | None
    filename: str | None
    tags: list[m.Tag]
    metadata: dict[str, Any]
    source_paths: list[m.SourcePath]
    size_bytes: m.Count
    sha256: Sha256
    status_reason: str | None
    extraction_method: str
    pages: int | None
    version: m.Version
    created_at: str
    updated_at: str
    text_sha256: Sha256
    passages: list[Place]
    original: Annotated[str, Meta(pattern=f"^{ORIGINALS}/[^/\\x00]+$")] | None = None
    fidelity: m.Fidelity | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_note(self) -> bool:
        return self.doc_type == "note"


class _Named(msgspec.Struct, frozen=True):
    """Only the uid of an exported document."""

    uid: str


class Description(msgspec.Struct, frozen=True):
    """The description of a collection."""

    id: str
    description: r.CollectionRequest


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an export. `engine` is its version, `model` the embedding model of its passages."""

    format: int
    made_at: str
    engine: str
    model: str
    documents: m.Count
    collections: list[Description]


def text_of(document: m.DocumentDetail, chunks: Sequence[m.Chunk]) -> str:
    """Return the text of a document from its passages, each at its offset.
    Raises NotAnExport: the passages do not fit into one text.
    """
    if document.text is not msgspec.UNSET:
        return document.text
    parts: list[str] = []
    place = 0
    for chunk in chunks:
        if chunk.end - chunk.start != len(chunk.text) or chunk.start < place:
            raise NotAnExport(f"document {document.id}: the engine's passages are no parts of one text")
        parts += [_BREAK * (chunk.start - place), chunk.text]
        place = chunk.end
    return "".join(parts)


def write_document(
    folder: Path,
    document: m.DocumentDetail,
    chunks: Sequence[m.Chunk],
    write_original: Callable[[Path], None],
) -> Path:
    """Write a document with its text; return the path of its text. `write_original` writes the document's
    original file, if it has one.
    """
    text = text_of(document, chunks).encode(errors="surrogatepass")
    members = {
        name: getattr(document, name)
        for name in ExportedDocument.__struct_fields__
        if name not in ("text_sha256", "passages", "original")
    }
    exported = ExportedDocument(
        **members,
        text_sha256=hashlib.sha256(text).hexdigest(),
        passages=[Place(each.start, each.end, each.page, headings_of(each)) for each in chunks],
    )
    collection = split_tags(document.tags).collection
    source = (document.source_path or document.filename or "").rpartition("/")[2]
    name = source.removesuffix(".md") or document.title
    place = folder / (_safe(collection) if collection else _NO_COLLECTION)
    place.mkdir(exist_ok=True)
    path = place / f"{_safe(name)}-{document.id}.md"
    path.write_bytes(text)
    if document.original:
        kept = Path(document.filename or document.title)
        beside = f"{ORIGINALS}/{_safe(kept.stem)}-{document.id}{_suffix(kept)}"
        (place / ORIGINALS).mkdir(exist_ok=True)
        write_original(place / beside)
        exported = msgspec.structs.replace(exported, original=beside)
    _write(path.with_suffix(".json"), exported)
    return path


def original_of(path: Path, document: ExportedDocument) -> Path | None:
    """Return the original file of a document whose JSON is at `path`, or None if it has none.
    Raises NotAnExport: it is missing, or differs from the file that was sent.
    """
    if document.original is None:
        return None
    kept = path.parent / document.original
    try:
        digest = sha256_of(kept)
    except OSError as error:
        raise NotAnExport(f"{kept}: {error.strerror}") from error
    if digest != document.sha256:
        raise NotAnExport(f"{kept} is not the file that was sent. Use kb add")
    return kept


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Mark the export as complete."""
    _write(folder / MANIFEST, manifest)


def read_manifest(folder: Path) -> Manifest:
    """Raises `NotAnExport`."""
    path = folder / MANIFEST
    if not path.exists():
        raise NotAnExport(f"{path} is missing: this is not an export, or an incomplete one. Export again")
    manifest = _read(path, Manifest)
    if manifest.format != FORMAT:
        raise NotAnExport(f"{path}: format {manifest.format}, and this kb reads {FORMAT}. Use a later kb")
    return manifest


def documents_in(folder: Path) -> Iterator[Path]:
    """Return the JSON files of the documents, in the order of their numbers."""
    return iter(sorted(folder.glob("*/*.json"), key=lambda path: (_number(path), path)))


def uids_in(folder: Path) -> frozenset[str]:
    """Return the uids of the documents, without unreadable ones."""
    uids = set()
    for path in documents_in(folder):
        with suppress(NotAnExport):
            uids.add(_read(path, _Named).uid)
    return frozenset(uids)


def read_document(path: Path) -> tuple[ExportedDocument, str]:
    """Return a document and its text.
    Raises NotAnExport: it is invalid, or its text has changed since the export.
    """
    document, beside = _read(path, ExportedDocument), path.with_suffix(".md")
    try:
        data = beside.read_bytes()
        text = data.decode(errors="surrogatepass")
    except (OSError, UnicodeDecodeError) as error:
        raise NotAnExport(f"{beside}: {error}") from error
    if hashlib.sha256(data).hexdigest() != document.text_sha256:
        raise NotAnExport(
            f"{beside} was changed since the export, so that passages are not where they were. Use kb add"
        )
    try:
        times = [datetime.fromisoformat(each) for each in (document.created_at, document.updated_at)]
    except ValueError as error:
        raise NotAnExport(f"{path}: {error}") from error
    if any(each.tzinfo is None for each in times):
        raise NotAnExport(f"{path}: a time without a zone")
    place = 0
    for passage in document.passages:
        if not place <= passage.start < passage.end <= len(text):
            raise NotAnExport(f"{path}: a passage is not within the text")
        place = passage.end
    return document, text


def _safe(name: str) -> str:
    return _UNSAFE.sub("-", name).strip("-.")[:_NAME_CHARS] or "document"


def _suffix(path: Path) -> str:
    return _UNSAFE.sub("", path.suffix)[:_NAME_CHARS]


def _number(path: Path) -> int:
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() and number.isascii() else 0


def _write(path: Path, value: msgspec.Struct) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def _read(path: Path, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotAnExport(f"{path}: {error}") from error
