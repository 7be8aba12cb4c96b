"""Citations: the source of a result, and its check against the present text."""

from __future__ import annotations

import hashlib

from .store import Row

LONGEST = 20_000


def citation(document: Row, chunk: Row, text: str, start: int) -> Row:
    """Return the citation of a text that begins at `start` in its document, in this chunk."""
    text = text[:LONGEST]
    return {
        "document": document["uid"], "version": document["version"], "page": chunk["page"],
        "heading": chunk["heading"], "start": start, "end": start + len(text), "begins": text[:40],
        "hash": _hash(text),
    }  # fmt: skip


def checked(cited: Row, document: Row, chunks: list[Row]) -> Row:
    """Check a quote; every position of every chunk is compared."""
    length = cited["end"] - cited["start"]
    places = [
        (abs(chunk["start"] + at - cited["start"]), at, chunk)
        for chunk in chunks
        for at in range(len(chunk["text"]) - length + 1 if 0 < length <= LONGEST else 0)
        if _hash(chunk["text"][at : at + length]) == cited["hash"]
    ]
    found = {"document_id": document["id"], "version": document["version"]}
    if not places:
        return {"status": "changed", "citation": None, "text": None, **found}
    away, at, chunk = min(places, key=lambda place: place[0])
    text = chunk["text"][at : at + length]
    return {
        "status": "moved" if away else "there", "text": text,
        "citation": citation(document, chunk, text, chunk["start"] + at), **found,
    }  # fmt: skip


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
