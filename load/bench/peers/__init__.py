"""What `bench search` measures: a peer is one module that keeps the protocol, and one line in `PEERS`.

A peer runs in processes of its own: one fills it and closes it, another opens it and is asked. Its packages
are imported with its module and belong to the extra `bench`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bench.corpus import Document


class Peer(Protocol):
    """A store of passages with words, vectors and one tag. It may be searched by several threads at once."""

    efforts: Sequence[int]
    """What `effort` may be, ascending: the more, the more of the true neighbours are found; one: exact."""
    effort: int

    def insert(self, documents: Sequence[Document]) -> None:
        """Add these; a passage is known by its number."""

    def finish(self) -> None:
        """Build what is built after all is inserted, and make all durable."""

    def search(self, text: str | None, vector: NDArray[np.float32] | None, tag: str | None) -> Sequence[int]:
        """The numbers of the ten best passages, best first; by words or vector alone where the other is None.

        Raises:
            NotImplementedError: the peer does not rank by words.
        """

    def close(self) -> None:
        """Let go of the files."""


class Module(NamedTuple):
    """Where a peer is: `open` of the module takes the folder, and opens what lies there or makes it."""

    module: str
    name: str


PEERS = {
    "kb": Module("bench.peers.kb", "kb on SQLite"),
    "tantivy": Module("bench.peers.tantivy_hnsw", "tantivy + HNSW (usearch, int8)"),
    "qdrant": Module("bench.peers.qdrant", "Qdrant's core (qdrant-edge)"),
    "lancedb": Module("bench.peers.lance", "LanceDB"),
    "chroma": Module("bench.peers.chroma", "Chroma (vectors alone)"),
    "pgvector": Module("bench.peers.pgvector", "PostgreSQL's words + pgvector"),
    "sqlite-vec": Module("bench.peers.sqlite_vec", "FTS5 + sqlite-vec"),
}


def opener(key: str) -> Callable[[Path], Peer]:
    """The function that opens a peer.

    Raises:
        ModuleNotFoundError: its packages are not installed.
    """
    opening: Callable[[Path], Peer] = import_module(PEERS[key].module).open_peer
    return opening


def fused(*rankings: Sequence[int], top: int = 10, saturation: int = 60) -> list[int]:
    """The best by reciprocal ranks, for peers that fuse nothing themselves."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, number in enumerate(ranking, start=1):
            scores[number] = scores.get(number, 0.0) + 1 / (saturation + rank)
    return sorted(scores, key=scores.__getitem__, reverse=True)[:top]
