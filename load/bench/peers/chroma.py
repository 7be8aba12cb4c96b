"""Chroma in process. It ranks by vectors only: its full-text search filters without scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chromadb
import numpy as np
from chromadb.config import Settings
from numpy.typing import NDArray

from bench.corpus import TAG, TOP, Document
from bench.peers import Peer


class Chroma(Peer):
    efforts = (64, 128, 256, 512, 1024)

    def __init__(self, folder: Path) -> None:
        client = chromadb.PersistentClient(str(folder), Settings(anonymized_telemetry=False))
        space: dict[str, Any] = {"space": "cosine", "ef_construction": 128, "max_neighbors": 16}
        self._collection = client.get_or_create_collection(
            "passages", configuration={"hnsw": space}, embedding_function=None
        )
        self._effort = self.efforts[0]

    @property
    def effort(self) -> int:
        return self._effort

    @effort.setter
    def effort(self, effort: int) -> None:
        self._collection.modify(configuration={"hnsw": {"ef_search": effort}})
        self._effort = effort

    def insert(self, documents: Sequence[Document]) -> None:
        self._collection.add(
            ids=[str(each.first + offset) for each in documents for offset in range(len(each.texts))],
            embeddings=np.concatenate([each.vectors for each in documents]),
            documents=[text for each in documents for text in each.full_texts],
            metadatas=[{"tag": TAG if each.tagged else ""} for each in documents for _ in each.texts],
        )

    def search(self, text: str | None, vector: NDArray[np.float32] | None, tag: str | None) -> Sequence[int]:
        if text is not None or vector is None:
            raise NotImplementedError("Chroma does not rank by words")
        found = self._collection.query(
            query_embeddings=[vector], n_results=TOP, where=None if tag is None else {"tag": tag}, include=[]
        )
        return [int(number) for number in found["ids"][0]]
