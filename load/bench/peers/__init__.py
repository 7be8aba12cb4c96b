"""Peers of `bench search`: each is a class in a module of its own, and a line in `PEERS`.

A peer runs in processes of its own: one fills it and closes it, another opens it and is asked. Its packages
are imported with its module and belong to the extra `bench`.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bench.corpus import Document
from kb_config.parts import imported

T = TypeVar("T")

CANDIDATES = 50
"""Number of passages of each ranking that are fused."""


class Peer(ABC):
    """A store of passages with words, vectors and one tag, opened or created in a folder.

    It may be searched by several threads at once.
    """

    efforts: Sequence[int] = (1,)
    """Values of `effort`, ascending: recall grows with effort; a single value if the search is exact."""
    effort: int = 1

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @abstractmethod
    def insert(self, documents: Sequence[Document]) -> None:
        """Add documents; a passage is identified by its number."""

    def finish(self) -> None:  # noqa: B027  # optional
        """Build indexes that need all documents, and make everything durable."""

    @abstractmethod
    def search(self, text: str | None, vector: NDArray[np.float32] | None, tag: str | None) -> Sequence[int]:
        """The numbers of the ten best passages, best first; by words or vector alone where the other is None.
        Raises NotImplementedError: the peer does not rank by words.
        """

    def close(self) -> None:  # noqa: B027  # optional
        """Close the files."""


class LoopThread:
    """An event loop on a thread of its own, for a peer with coroutines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Module(NamedTuple):
    """The class of a peer, as `module:class`, and its name in the table."""

    place: str
    name: str


PEERS = {
    "kb": Module("bench.peers.kb:Kb", "kb on SQLite"),
    "tantivy": Module("bench.peers.tantivy_hnsw:TantivyHnsw", "tantivy + HNSW (usearch, int8)"),
    "qdrant": Module("bench.peers.qdrant:Qdrant", "Qdrant's core (qdrant-edge)"),
    "lancedb": Module("bench.peers.lance:Lance", "LanceDB"),
    "chroma": Module("bench.peers.chroma:Chroma", "Chroma (vectors alone)"),
    "pgvector": Module("bench.peers.pgvector:Pgvector", "PostgreSQL's words + pgvector"),
    "sqlite-vec": Module("bench.peers.sqlite_vec:SqliteVec", "FTS5 + sqlite-vec"),
}


def opener(key: str) -> type[Peer]:
    """Return the class of a peer. Raises ModuleNotFoundError: its packages are not installed."""
    opening: type[Peer] = imported(PEERS[key].place)
    return opening


def fused(*rankings: Sequence[int], top: int = 10, saturation: int = 60) -> list[int]:
    """Return the best by reciprocal rank fusion, for peers without their own."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, number in enumerate(ranking, start=1):
            scores[number] = scores.get(number, 0.0) + 1 / (saturation + rank)
    return sorted(scores, key=scores.__getitem__, reverse=True)[:top]
