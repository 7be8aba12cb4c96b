"""Peers of `bench search`: each is a module that implements the protocol, and a line in `PEERS`.

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
    """Possible values of `effort`, ascending: recall grows with effort; a single value if the search is
    exact.
    """
    effort: int

    def insert(self, documents: Sequence[Document]) -> None:
        """Add documents; a passage is identified by its number."""

    def finish(self) -> None:
        """Build indexes that need all documents, and make everything durable."""

    def search(self, text: str | None, vector: NDArray[np.float32] | None, tag: str | None) -> Sequence[int]:
        """The numbers of the ten best passages, best first; by words or vector alone where the other is None.

        Raises:
            NotImplementedError: the peer does not rank by words.
        """

    def close(self) -> None:
        """Close the files."""


class Module(NamedTuple):
    """The module of a peer: its `open` takes a folder, and opens or creates the store there."""

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
    """Return the function that opens a peer.

    Raises:
        ModuleNotFoundError: its packages are not installed.
    """
    opening: Callable[[Path], Peer] = import_module(PEERS[key].module).open_peer
    return opening


def fused(*rankings: Sequence[int], top: int = 10, saturation: int = 60) -> list[int]:
    """Return the best by reciprocal rank fusion, for peers without their own."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, number in enumerate(ranking, start=1):
            scores[number] = scores.get(number, 0.0) + 1 / (saturation + rank)
    return sorted(scores, key=scores.__getitem__, reverse=True)[:top]
