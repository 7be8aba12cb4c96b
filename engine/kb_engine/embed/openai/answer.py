"""Parsing of an embedding endpoint's response."""

from __future__ import annotations

import msgspec
import numpy as np

from kb_engine.embed.openai.openai_settings import MOST_DIMENSIONS
from kb_engine.endpoint.client import first_words
from kb_engine.index.port import Vectors


def vectors_of(body: bytes, *, count: int, dimensions: int) -> Vectors:
    """Return the vectors of `count` texts in order, each of length 1; `dimensions` 0 allows any.
    Raises BadAnswer: malformed JSON, a wrong number of vectors, or an invalid vector.
    """
    try:
        items = msgspec.json.decode(body, type=_Answer).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"no list of embeddings ({first_words(str(error))})") from error
    if len(items) != count:
        raise BadAnswer(f"{len(items)} embeddings for {count} texts")
    if any(item.index is not None for item in items):  # without an index they are in order
        places = {item.index: item for item in items}
        if places.keys() != set(range(count)):
            raise BadAnswer("embeddings whose index is missing or comes twice")
        items = [places[place] for place in range(count)]
    wanted = dimensions or len(items[0].embedding)
    if not 0 < wanted <= MOST_DIMENSIONS:
        raise BadAnswer(f"vectors of {wanted} dimensions; 1 to {MOST_DIMENSIONS} can be used")
    for item in items:
        if (found := len(item.embedding)) != wanted:
            raise WrongLength(f"vectors of {found} dimensions where {wanted} were expected")
    vectors = np.array([item.embedding for item in items], dtype=np.float64)
    if not np.isfinite(vectors).all():
        raise BadAnswer("a vector with a number that is not finite")
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    if not largest.all():
        raise BadAnswer("a vector of zeros, which has no direction")
    scaled = vectors / largest  # avoids overflow and underflow of squares
    return np.asarray(scaled / np.linalg.norm(scaled, axis=1, keepdims=True), dtype=np.float32)


class _Item(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Item]


class BadAnswer(ValueError):
    """The response has no usable vectors; the message says why and quotes nothing of it."""


class WrongLength(BadAnswer):
    """The vectors have an unexpected length."""
