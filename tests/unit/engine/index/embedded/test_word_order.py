"""The words of chunks in their order: they find the rows whose texts pass the contract's comparison."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.semantics.query import Wording
from kb_engine.index.embedded import index, tail, word_order
from kb_engine.index.embedded.block import Block, open_segment, write_segment
from kb_engine.index.embedded.index import Part, State, next_renewal
from kb_engine.index.embedded.tail import Batch
from kb_engine.index.words import Analyser

PIECES = ("a", "B", "c", "é", "Straße", "机器", "x" * 40, "d1", "_", "-", ".")
written = st.lists(st.sampled_from(PIECES), max_size=6).map(" ".join)
Texts = Sequence[tuple[str | None, str]]
texts = st.lists(st.tuples(st.none() | written, written), min_size=1, max_size=4)
documents = st.lists(st.tuples(written, texts), min_size=1, max_size=3)
wordings = st.builds(Wording, st.lists(written, max_size=2), st.lists(written, max_size=2))


def block_of(title: str, texts: Texts) -> Block:
    """A block in memory to which a later chunk is added, as by a concurrent write."""
    ids, vectors = np.arange(len(texts) + 1), np.eye(1, 4, dtype=np.float32)
    first = Batch(1, title, ids[:-1], texts, vectors.repeat(len(texts), axis=0))
    state = State(4).with_added(first, Analyser())
    state.with_added(Batch(2, "later", ids[-1:], [(None, "a B unseen")], vectors), Analyser())
    return state.parts[0].block


def passing(block: Block, wording: Wording) -> list[bool]:
    assert block.order is not None
    found: list[bool] = block.order.passing(wording).tolist()
    return found


@pytest.mark.parametrize("narrow", [word_order.NARROW, 3])
def test_the_rows_that_pass_are_those_whose_texts_pass(narrow: int) -> None:
    """In memory, and in a file made of several blocks without some of their rows; in one half and in two."""

    @given(documents, wordings, st.randoms(use_true_random=False))
    def check(found: list[tuple[str, Texts]], wording: Wording, chance: random.Random) -> None:
        parts, due = [], []
        for title, each in found:
            block, expected = block_of(title, each), [wording.passes(title, *text) for text in each]
            assert passing(block, wording) == expected
            kept = np.array([chance.random() < 0.7 for _ in each])
            parts.append((block, kept))
            due += [one for one, left in zip(expected, kept, strict=True) if left]
        with TemporaryDirectory() as folder:
            write_segment(Path(folder) / "file", parts)
            assert passing(open_segment(Path(folder) / "file", 4), wording) == due

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_order, "NARROW", narrow)
        patch.setattr(tail, "_AT_ONCE", 10 * narrow)
        patch.setattr(word_order, "_COMPARED", 2)
        check()


def test_a_segment_without_the_order_of_words_is_used_and_due_to_be_rebuilt(tmp_path: Path) -> None:
    ordered = block_of("title", [(None, "a B")])
    write_segment(tmp_path / "file", [(replace(ordered, order=None), None), (ordered, None)])
    earlier = Part(open_segment(tmp_path / "file", 4), "file")
    wording = Wording(["a B"])
    assert earlier.block.order is None
    assert not State(4, (earlier,)).finds(wording)
    assert next_renewal(State(4, (earlier,))) is earlier
    assert State(4, (Part(ordered),)).finds(wording)


def test_many_phrases_are_left_to_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "COMPARED_ROWS", 3)
    state = State(4, (Part(block_of("title", [(None, "a B")])),))
    assert [state.finds(Wording(["a B", "B a", "a a"][:count])) for count in (2, 3)] == [True, False]
