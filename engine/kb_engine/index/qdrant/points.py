"""The contents of a point: the conversion of documents to points, and of selections to filters.

    vectors  meaning    the embedding, compared by its dot product (the rows have length 1)
             words      for each term its part of BM25 for texts of the reference length, without its weight
    payload  document, position, tags, doc_type, format, source_type, source_paths, created_at, updated_at
             length     length of the chunk in words
             terms      the numbers of its terms, for exact document frequencies
             words      the frequency of each term, by number; a search reads only its own terms

A term is identified by 32 bits of its digest, the size of a dimension number in Qdrant's sparse vectors. Of a
million different terms about one in 4,000 collides with another, and is found together with it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

from qdrant_client import models as q

from kb_contracts.access.reach import Reach
from kb_engine.index.port import IndexedDocument, Selection
from kb_engine.index.score import K1, B
from kb_engine.index.words import Analyser

MEANING, WORDS = "meaning", "words"  # the names of the vectors

_NUMBER = q.IntegerIndexParams(
    type=q.IntegerIndexType.INTEGER, lookup=True, range=False, enable_hnsw=False, memory=q.Memory.CACHED
)
PAYLOAD_INDEXES: dict[str, q.PayloadSchemaType | q.PayloadSchemaParams] = {
    "document": _NUMBER,
    "position": _NUMBER,
    "tags": q.KeywordIndexParams(type=q.KeywordIndexType.KEYWORD, prefix=True),
    "doc_type": q.PayloadSchemaType.KEYWORD,
    "format": q.PayloadSchemaType.KEYWORD,
    "source_type": q.PayloadSchemaType.KEYWORD,
    "source_paths": q.KeywordIndexParams(type=q.KeywordIndexType.KEYWORD, prefix=True),
    "created_at": q.PayloadSchemaType.DATETIME,
    "updated_at": q.PayloadSchemaType.DATETIME,
    "length": _NUMBER,
    "terms": _NUMBER,
    "build": q.PayloadSchemaType.KEYWORD,
    "beat": _NUMBER,
}
"""`build` and `beat` are fields of the mark."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a chunk by number, each with its frequency, and the chunk's length in words."""

    frequencies: dict[int, int] = field(default_factory=dict)
    length: int = 0


def term_number(term: str) -> int:
    """Return 32 bits of the term's digest."""
    return int.from_bytes(hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=4).digest())


def share(frequency: float, length: float, average: float) -> float:
    """Return a term's part of BM25, without its weight, in a chunk of `length`; the mean is
    `average` words.
    """
    return frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * length / average))


def terms_of(documents: Iterable[IndexedDocument]) -> dict[int, Terms]:
    """Return the terms of each chunk, by its id. CPU-bound."""
    analyser = Analyser()
    found: dict[int, Terms] = {}
    for one in documents:
        texts = zip(one.headings, one.texts, strict=True)
        for chunk_id, chunk in zip(
            one.chunk_ids, analyser.chunks(one.title, texts, one.language), strict=True
        ):
            found[chunk_id] = Terms(Counter(map(term_number, chunk.terms)), chunk.length)
    return found


def mean_length(terms: Iterable[Terms]) -> float:
    """Return the mean number of words per chunk, at least 1."""
    lengths = [one.length for one in terms]
    return max(1.0, sum(lengths) / len(lengths)) if lengths else 1.0


def points_of(
    documents: Iterable[IndexedDocument], terms: dict[int, Terms], reference: float
) -> Iterator[q.PointStruct]:
    for one in documents:
        common = {
            "document": one.id,
            "tags": list(one.tags),
            "doc_type": one.doc_type,
            "format": one.format,
            "source_type": one.source_type,
            "source_paths": list(one.source_paths),
            "created_at": _moment(one.created_at),
            "updated_at": _moment(one.updated_at),
        }
        for place, chunk_id in enumerate(one.chunk_ids):
            own = terms[chunk_id]
            vectors: dict[str, q.Vector] = {MEANING: one.vectors[place].tolist()}
            if own.frequencies:
                vectors[WORDS] = q.SparseVector(
                    indices=list(own.frequencies),
                    values=[share(count, own.length, reference) for count in own.frequencies.values()],
                )
            payload = common | {
                "position": place,
                "length": own.length,
                "terms": list(own.frequencies),
                "words": {str(number): count for number, count in own.frequencies.items()},
            }
            yield q.PointStruct(id=chunk_id, vector=vectors, payload=payload)


def size_of(point: q.PointStruct) -> int:
    """Return the approximate size of a point in a request, in bytes."""
    assert isinstance(point.vector, dict)
    payload = point.payload or {}
    return 1_000 + 24 * len(point.vector[MEANING]) + 56 * len(payload["terms"])  # type: ignore[arg-type]


def batches(points: Iterable[q.PointStruct], most: int) -> Iterator[list[q.PointStruct]]:
    """Yield the points in batches of about `most` bytes, at least one point each."""
    batch: list[q.PointStruct] = []
    size = 0
    for point in points:
        if batch and size + size_of(point) > most:
            yield batch
            batch, size = [], 0
        batch.append(point)
        size += size_of(point)
    if batch:
        yield batch


def selected(selection: Selection) -> list[q.Condition]:
    """Return the conditions on a chunk's payload; empty without filters."""
    return list(_conditions(selection))


def _conditions(wanted: Selection) -> Iterator[q.Condition]:
    if wanted.reach is not None:
        yield reached(wanted.reach)
    for tag in wanted.tags:
        yield equals("tags", tag)
    if wanted.tags_any:
        yield among("tags", wanted.tags_any)
    if wanted.doc_type is not None:
        yield equals("doc_type", wanted.doc_type)
    if wanted.formats:
        yield among("format", wanted.formats)
    if wanted.source_types:
        named = [one for one in wanted.source_types if one is not None]
        either: list[q.Condition] = [among("source_type", named)] if named else []
        if None in wanted.source_types:
            either.append(q.IsEmptyCondition(is_empty=q.PayloadField(key="source_type")))
        yield q.Filter(should=either)
    if wanted.source_path_prefix:
        prefix = q.MatchPrefix(prefix=wanted.source_path_prefix)
        yield q.FieldCondition(key="source_paths", match=prefix)
    if wanted.date_from is not None or wanted.date_to is not None:
        span = q.DatetimeRange(gte=wanted.date_from, lte=wanted.date_to)
        yield q.FieldCondition(key=wanted.date_field, range=span)


def reached(reach: Reach) -> q.Condition:
    """Condition: a tag of the chunk's document is within the access scope."""
    prefixes = [q.MatchPrefix(prefix=each) for each in sorted(reach.prefixes)]
    either = [q.FieldCondition(key="tags", match=each) for each in prefixes]
    return q.Filter(should=[among("tags", sorted(reach.tags)), *either])


def equals(key: str, value: str | int | bool) -> q.Condition:
    """Condition: the payload field has this value, or contains it."""
    return q.FieldCondition(key=key, match=q.MatchValue(value=value))


def among(key: str, values: Sequence[str] | Sequence[int]) -> q.Condition:
    """Condition: the payload field has one of these values."""
    return q.FieldCondition(key=key, match=q.MatchAny(any=cast("list[str] | list[int]", list(values))))


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")
