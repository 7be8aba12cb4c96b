"""What an endpoint answers, taken apart. No I/O: bytes in, vectors or the reason why not out."""

from __future__ import annotations

import msgspec
import numpy as np

from kb_engine.embed.openai.settings import MOST_DIMENSIONS
from kb_engine.embed.protocol import Vectors

_MOST_WORDS = 200


class BadAnswer(ValueError):
    """The answer holds no vectors that can be used; the message says why and quotes nothing of it."""


class WrongLength(BadAnswer):
    """The vectors have another length than those before them."""

    def __init__(self, found: int, wanted: int) -> None:
        super().__init__(f"vectors of {found} dimensions where {wanted} were expected")
        self.found = found
        self.wanted = wanted


class _Item(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Item]


def vectors_of(body: bytes, *, count: int, dimensions: int) -> Vectors:
    """The vectors of `count` texts in their order, each of length 1; `dimensions` 0: any number of them.

    Raises:
        BadAnswer: no such JSON, too many or too few, or a vector without a direction.
    """
    try:
        items = msgspec.json.decode(body, type=_Answer).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"no list of embeddings ({_first_words(str(error))})") from error
    if len(items) != count:
        raise BadAnswer(f"{len(items)} embeddings for {count} texts")
    rows = [item.embedding for item in _in_order(items)]
    wanted = dimensions or len(rows[0])
    if not 0 < wanted <= MOST_DIMENSIONS:
        raise BadAnswer(f"vectors of {wanted} dimensions; 1 to {MOST_DIMENSIONS} can be used")
    for row in rows:
        if len(row) != wanted:
            raise WrongLength(len(row), wanted)
    return _of_length_one(np.array(rows, dtype=np.float64))


def _in_order(items: list[_Item]) -> list[_Item]:
    """By `index` where the endpoint tells it, else as they came."""
    if all(item.index is None for item in items):
        return items
    places = {item.index: item for item in items}
    if places.keys() != set(range(len(items))):
        raise BadAnswer("embeddings whose index is missing or comes twice")
    return [places[place] for place in range(len(items))]


def _of_length_one(vectors: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Vectors:
    if not np.isfinite(vectors).all():
        raise BadAnswer("a vector with a number that is not finite")
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    if not largest.all():
        raise BadAnswer("a vector of zeros, which has no direction")
    scaled = vectors / largest  # squares of very large numbers would overflow, of very small ones vanish
    return np.asarray(scaled / np.linalg.norm(scaled, axis=1, keepdims=True), dtype=np.float32)


class _Words(msgspec.Struct):
    """Where endpoints put what went wrong: an object with a message, or a text by one of these names."""

    error: object = None
    message: object = None
    detail: object = None


def words_of(body: bytes, secret: str) -> str:
    """What an endpoint says went wrong, one line of printable signs without the key; empty where nothing.

    Only for answers to texts of our own: endpoints quote what they were asked.
    """
    try:
        document = msgspec.json.decode(body, type=_Words)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    inner = document.error.get("message") if isinstance(document.error, dict) else document.error
    words = next((text for text in (inner, document.message, document.detail) if isinstance(text, str)), "")
    if secret:
        words = words.replace(secret, "***")
    return _first_words(words)


def _first_words(text: str) -> str:
    line = " ".join(text.split())[:_MOST_WORDS]
    return "".join(sign if sign.isprintable() else "?" for sign in line)
