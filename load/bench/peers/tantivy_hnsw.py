"""tantivy for the words and usearch's HNSW over int8 for the vectors, fused by ranks: the usual pair.

Candidates of HNSW are rescored with the float32 vectors of a file: int8 alone does not reach the recall of
the other peers. HNSW has no filter; for a tag it is asked for proportionally more candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tantivy
from numpy.typing import NDArray
from usearch.index import Index

from bench.corpus import DIMENSIONS, PASSAGES_EACH, TAG, TAGGED_EVERY, TOP, Document
from bench.peers import CANDIDATES, Peer, fused


class TantivyHnsw(Peer):
    efforts = (64, 128, 256, 512, 1024, 2048)
    effort = efforts[0]

    def __init__(self, folder: Path) -> None:
        schema = tantivy.SchemaBuilder()
        schema.add_unsigned_field("number", stored=True, fast=True)
        schema.add_text_field("text", tokenizer_name="en_stem")
        schema.add_text_field("tag", tokenizer_name="raw")
        words = folder / "words"
        words.mkdir(exist_ok=True)
        self._words = tantivy.Index(schema.build(), path=str(words))
        self._writer: tantivy.IndexWriter | None = None
        self._searcher = self._words.searcher()
        self._schema = self._words.schema
        self._graph_file, self._vector_file = folder / "vectors.usearch", folder / "vectors.f32"
        self._graph = Index(ndim=DIMENSIONS, metric="cos", dtype="i8", connectivity=16, expansion_add=128)
        if self._graph_file.exists():
            self._graph.load(str(self._graph_file))
            self._vectors = np.memmap(self._vector_file, np.float32, "r").reshape(-1, DIMENSIONS)

    def insert(self, documents: Sequence[Document]) -> None:
        if self._writer is None:
            self._writer = self._words.writer(heap_size=128_000_000)
        with self._vector_file.open("ab") as file:
            for each in documents:
                for offset, text in enumerate(each.full_texts):
                    entry = tantivy.Document()
                    entry.add_unsigned("number", each.first + offset)
                    entry.add_text("text", text)
                    if each.tagged:
                        entry.add_text("tag", TAG)
                    self._writer.add_document(entry)
                self._graph.add(np.arange(each.first, each.first + len(each.texts)), each.vectors)
                file.write(each.vectors.tobytes())
        self._writer.commit()

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.wait_merging_threads()
        self._graph.save(str(self._graph_file))

    def search(self, text: str | None, vector: NDArray[np.float32] | None, tag: str | None) -> Sequence[int]:
        depth = TOP if text is None or vector is None else CANDIDATES
        rankings = []
        if text is not None:
            query = self._words.parse_query(text, ["text"])
            if tag is not None:
                wanted = tantivy.Query.term_query(self._schema, "tag", tag)
                kept = tantivy.Query.const_score_query(wanted, 0.0)
                query = tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.Must, kept)])
            hits = self._searcher.search(query, depth).hits
            rankings.append([self._searcher.doc(address)["number"][0] for _, address in hits])
        if vector is not None:
            wide = self.effort * (1 if tag is None else TAGGED_EVERY)
            near = np.asarray(self._graph.search(vector, min(wide, len(self._graph))).keys, np.int64)
            if tag is not None:
                near = near[near // PASSAGES_EACH % TAGGED_EVERY == 0]
            rankings.append(near[np.argsort(-(self._vectors[near] @ vector))[:depth]].tolist())
        return rankings[0] if len(rankings) == 1 else fused(*rankings)

    def close(self) -> None:
        del self._graph
