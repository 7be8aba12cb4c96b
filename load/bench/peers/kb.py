"""kb itself: the store of a SQLite base, asked from threads over its own event loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.corpus import DIMENSIONS, PASSAGES_EACH, SCORING, TOP, Document
from bench.engine import add_documents
from bench.peers import LoopThread, Peer
from kb_contracts.api import models as m
from kb_engine.index.port import Selection
from kb_engine.store.port import EmbedderIdentity, Query
from kb_engine.store.sqlite.sqlite_store import open_sqlite

SEARCH_PROCESSES = max(0, (os.cpu_count() or 1) - 1)
"""Number of search processes, as many as an engine has by default on a small machine."""


class Kb(Peer):
    def __init__(self, folder: Path) -> None:
        self._loop = LoopThread()
        identity = EmbedderIdentity("given", DIMENSIONS)
        self._store = self._loop.run(
            open_sqlite(folder / "kb.sqlite", embedder=identity, search_processes=SEARCH_PROCESSES)
        )

    def insert(self, documents: Sequence[Document]) -> None:
        self._loop.run(add_documents(self._store, documents))

    def search(self, text: str | None, vector: NDArray[np.float32] | None, tag: str | None) -> Sequence[int]:
        mode: m.Mode = "vector" if text is None else "fts" if vector is None else "hybrid"
        selection = Selection(tags=() if tag is None else (tag,))
        query = Query(
            text=text or "", mode=mode, vector=vector, scoring=SCORING, top=TOP, selection=selection
        )
        found = self._loop.run(self._store.search(query))
        return [
            int(Path(each.document.source_path or "").stem) * PASSAGES_EACH + each.chunk.index
            for each in found.results
        ]

    def close(self) -> None:
        self._loop.run(self._store.close())
        self._loop.close()
