"""Chunks with their vectors and words, one row each: in memory while new, later in a file.

A file is a *segment*: it holds a complete block and never changes. Removed rows are recorded outside the
block; they disappear when the remaining rows are written to a new file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kb_engine.index.embedded import array_file, postings, word_order
from kb_engine.index.embedded.postings import Postings, WordBlock
from kb_engine.index.embedded.vectors import Mask, QuantisedVectors
from kb_engine.index.embedded.word_order import MergedOrder, Order
from kb_engine.index.embedded.words_merging import MergedPostings
from kb_engine.index.port import Ids
from kb_engine.index.words import ANALYSER, EARLIER_ANALYSERS

KIND, VERSION = "segment", 1
_WITHOUT_ORDER = {
    **postings.DTYPES,
    "codes": "|i1",
    "scales": "<f4",
    "residuals": "<f4",
    "chunk_ids": "<i8",
    "document_ids": "<i8",
    "document_rows": "<i8",
}
"""The sections of earlier files, which remain in use until they are rebuilt."""
_DTYPES = {**_WITHOUT_ORDER, **word_order.DTYPES}
_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Chunks in the order of their ids. Blocks and the data that they refer to are immutable.

    `document_ids` and `document_rows` are a run-length encoding of the rows' documents. A document may occur
    in two runs. `analyser` is the one that made the words, or the earliest of several. `order` is None in an
    earlier file.
    """

    chunk_ids: Ids
    document_ids: Ids
    document_rows: Ids
    vectors: QuantisedVectors
    words: WordBlock
    analyser: str = ANALYSER
    order: Order | None = None

    def __len__(self) -> int:
        return len(self.chunk_ids)


Rest = tuple[Block, Mask | None]  # a block, and a mask of its remaining rows; None: all rows remain


def write_segment(path: Path, parts: Sequence[Rest]) -> None:
    """Write the remaining rows of these blocks, in order. At least one block must have vectors.
    Raises OSError: for example, the disk is full; no file is left behind.
    """
    merged = MergedPostings([(block.words.postings(), kept) for block, kept in parts])
    dimensions = parts[0][0].vectors.dimensions
    attributes: dict[str, array_file.Attribute] = {
        "analyser": min((block.analyser for block, _ in parts), key=(*EARLIER_ANALYSERS, ANALYSER).index),
        "dimensions": dimensions,
        "longest": max(block.vectors.longest for block, _ in parts),
    }
    chunk_ids = np.concatenate([_remaining(block.chunk_ids, kept) for block, kept in parts])
    lengths = {**merged.lengths, "codes": len(chunk_ids) * dimensions}
    orders = [(block.order, kept) for block, kept in parts if block.order is not None]
    order = MergedOrder(orders) if len(orders) == len(parts) else None
    dtypes = _WITHOUT_ORDER if order is None else _DTYPES
    lengths |= {} if order is None else order.lengths
    with array_file.new_array_file(path, KIND, VERSION, attributes, dtypes, lengths) as writer:
        merged.write(writer)
        if order is not None:
            order.write(writer)
        for block, kept in parts:
            _write_codes(writer, block.vectors.codes, kept)
        for name in ("scales", "residuals"):
            of_parts = [_remaining(getattr(block.vectors, name), kept) for block, kept in parts]
            writer.add(name, np.concatenate(of_parts))
        writer.add("chunk_ids", chunk_ids)
        of_rows = [np.repeat(block.document_ids, block.document_rows) for block, _ in parts]
        document_ids, document_rows = runs(
            np.concatenate([_remaining(ids, kept) for ids, (_, kept) in zip(of_rows, parts, strict=True)])
        )
        writer.add("document_ids", document_ids)
        writer.add("document_rows", document_rows)


def open_segment(path: Path, dimensions: int) -> Block:
    """Open the block in a file, memory-mapped: it stays readable after the file is removed.

    Raises:
        UnreadableIndexFile: it is not a complete segment, has another version or other vectors, or its
            analyser is incompatible.
        OSError: it cannot be opened.
    """
    file = _opened(path)
    arrays = file.arrays
    analyser = file.attributes.get("analyser")
    if analyser not in (ANALYSER, *EARLIER_ANALYSERS) or file.attributes.get("dimensions") != dimensions:
        raise array_file.UnreadableIndexFile(path, "it was made by another analyser, or holds other vectors")
    rows = len(arrays["chunk_ids"])
    of_rows = [len(arrays[name]) for name in ("scales", "residuals", "lengths")]
    if of_rows != [rows] * 3 or len(arrays["codes"]) != rows * dimensions:
        raise array_file.UnreadableIndexFile(path, "its sections do not fit one another")
    if int(arrays["document_rows"].sum()) != rows:
        raise array_file.UnreadableIndexFile(path, "its documents do not have its rows")
    try:
        order = word_order.opened(arrays, rows) if word_order.DTYPES.keys() <= arrays.keys() else None
    except ValueError as error:
        raise array_file.UnreadableIndexFile(path, str(error)) from error
    return Block(
        arrays["chunk_ids"],
        arrays["document_ids"],
        arrays["document_rows"],
        QuantisedVectors(
            arrays["codes"].reshape(rows, dimensions),
            arrays["scales"],
            arrays["residuals"],
            float(file.attributes["longest"]),
        ),
        Postings(**{name: arrays[name] for name in postings.DTYPES}),
        str(analyser),
        order,
    )


def is_sound(path: Path) -> bool:
    """True if the whole file is intact, or no longer exists."""
    try:
        _opened(path).check()
    except array_file.UnreadableIndexFile:
        return False
    except FileNotFoundError:
        return True
    return True


def _opened(path: Path) -> array_file.ArrayFile:
    try:
        return array_file.ArrayFile(path, KIND, VERSION, _DTYPES)
    except array_file.UnreadableIndexFile:
        return array_file.ArrayFile(path, KIND, VERSION, _WITHOUT_ORDER)


def runs(ids: Ids) -> tuple[Ids, Ids]:
    """Run-length encode the ids: return the id and the length of each run."""
    starts = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 1))
    return ids[starts], np.diff(starts, append=len(ids))


def _write_codes(writer: array_file.ArrayFileWriter, codes: NDArray[np.int8], kept: Mask | None) -> None:
    for start in range(0, len(codes), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        writer.append("codes", _remaining(codes[rows], None if kept is None else kept[rows]).reshape(-1))


def _remaining(array: NDArray[Any], kept: Mask | None) -> NDArray[Any]:
    return array if kept is None else array[kept]
