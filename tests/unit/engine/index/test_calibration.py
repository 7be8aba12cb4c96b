"""With the packaged model a score means the same in a base of one chunk, of forty and of ten thousand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kb_contracts.api import models as m
from kb_engine.embed.context import Passage, in_context
from kb_engine.embed.minilm import MiniLM
from kb_engine.index.embedded.index import Changes, EmbeddedIndex, State
from kb_engine.index.embedded.selection import Lookup
from kb_engine.index.embedded.tail import Batch
from kb_engine.index.port import IndexQuery
from kb_engine.index.score import Ranked, above_floor, fused, is_doubtful, rank
from kb_engine.index.words import Analyser

pytestmark = pytest.mark.process

SIZES = [1, 40, 10_000]
ANSWER = Passage(
    "Neural networks",
    None,
    "Neural networks learn by adjusting the weights between their neurons until the error is small.",
)
NOTE = Passage("Boiler", None, "If the boiler shows error E119, refill water until the gauge is at 1.5 bar.")


@pytest.fixture(scope="module")
def model() -> MiniLM:
    embedder = MiniLM()
    embedder.load()
    return embedder


def answered(
    model: MiniLM, passage: Passage, size: int, question: str, mode: m.Mode = "hybrid"
) -> tuple[list[Ranked], bool]:
    """Search with the passage as chunk 1, among chunks with other words and another meaning."""
    vectors = np.random.default_rng(0).normal(size=(size, model.dimensions)).astype(np.float32)
    vectors[0] = model.embed([in_context(passage, lambda _text: True)])[0]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    others = [(None, f"Cart {number} of granite left the quarry in the rain.") for number in range(1, size)]
    ids = np.arange(1, size + 1)
    batches = [Batch(1, passage.title, ids[:1], [(passage.heading, passage.text)], vectors[:1])]
    if others:
        batches.append(Batch(2, "Carts", ids[1:], others, vectors[1:]))
    index = EmbeddedIndex(State(model.dimensions))
    state = index.stage(Changes(added=batches))

    def found(mode: m.Mode) -> tuple[list[Ranked], float]:
        query = IndexQuery(question, mode, model.embed_query(question), model.scoring, 10)
        lookup = Lookup(state, Analyser().words_of(question), None, query)
        candidates = lookup.best(query, lambda chunks: vectors[chunks - 1])
        ranked = rank(candidates, query)
        return ranked, above_floor(query, candidates, ranked)

    ranked, above = found(mode)
    if mode == "vector" and is_doubtful(model.scoring, above):
        above = fused(model.scoring.weight, above, found("fts")[1])
    return ranked, above < 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("passage", "question"),
    [(ANSWER, "neural networks"), (ANSWER, "how do neural networks learn"), (NOTE, "boiler error E119")],
)
def test_a_passage_that_answers_has_more_than_a_half(
    model: MiniLM, passage: Passage, question: str, size: int
) -> None:
    ranked, weak = answered(model, passage, size, question)
    assert (ranked[0].chunk_id, weak) == (1, False)
    assert ranked[0].score > 0.5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["hybrid", "fts", "vector"])
@pytest.mark.parametrize(
    "question", ["what is the capital of Mongolia", "how do I bake a bread", "what is it about"]
)
def test_one_that_does_not_has_less_and_is_weak(
    model: MiniLM, question: str, mode: m.Mode, size: int
) -> None:
    ranked, weak = answered(model, NOTE, size, question, mode)
    assert all(one.score < 0.5 for one in ranked)
    assert weak


def test_a_changed_fact_is_a_similar_note_and_another_fact_is_not(model: MiniLM) -> None:
    """Each line has a note, a later note on the same subject and a note on another one in the same field."""
    lines = Path(__file__).with_name("similar_notes.txt").read_text(encoding="utf-8").splitlines()
    notes, changed, other = (
        model.embed(texts) for texts in zip(*(line.split("|") for line in lines), strict=True)
    )
    floor = model.scoring.similar_floor
    assert len(lines) == 100
    assert ((notes * changed).sum(axis=1) >= floor).sum() >= 97
    assert ((notes * other).sum(axis=1) >= floor).sum() <= 5
