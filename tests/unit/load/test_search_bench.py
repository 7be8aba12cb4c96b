"""The benchmark `search`: its corpus, its exact results, and a run end to end."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bench import search
from bench.corpus import PASSAGES_EACH, SCORING, TAGGED_EVERY, TOP, Answer, Corpus
from bench.peers import PEERS, Module, Peer, fused
from kb_contracts.api import models as m
from kb_engine.embed.hashing import HashEmbedder
from kb_engine.index.words import Analyser, weigh_words
from kb_verify.scores import explained

SIZE = 1_000
QUESTIONS = 20
SEED = 3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.made(tmp_path_factory.mktemp("search") / "corpus", SIZE, QUESTIONS, SEED)


def test_a_seed_makes_the_same_corpus_again(corpus: Corpus, tmp_path: Path) -> None:
    again = Corpus.made(tmp_path / "again", SIZE, QUESTIONS, SEED)
    other = Corpus.made(tmp_path / "other", SIZE, QUESTIONS, SEED + 1)
    texts = [[each.full_texts for each in one.documents()] for one in (corpus, again, other)]
    assert texts[0] == texts[1] != texts[2]
    assert np.array_equal(corpus.array("vectors"), again.array("vectors"))


def test_documents_have_passages_of_unit_vectors_and_every_twentieth_the_tag(corpus: Corpus) -> None:
    documents = list(corpus.documents())
    assert {len(each.texts) for each in documents} == {PASSAGES_EACH}
    assert [each.number for each in documents if each.tagged] == [0]
    assert len(documents) == SIZE // PASSAGES_EACH == TAGGED_EVERY
    lengths = np.linalg.norm(np.concatenate([each.vectors for each in documents]), axis=1)
    assert np.allclose(lengths, 1, atol=1e-5)


def test_words_are_as_frequent_as_zipf_says(corpus: Corpus) -> None:
    counts = Counter(word for each in corpus.documents() for text in each.texts for word in text.split())
    first, tenth = (counts.most_common(10)[place][1] for place in (0, 9))
    assert first / tenth == pytest.approx(10, rel=0.2)


@pytest.fixture(scope="module")
def corpus_of_texts(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("texts")
    pages = sorted((Path(__file__).parents[3] / "docs").glob("*.md"))
    words = " ".join(each.read_text("utf-8") for each in pages).split()
    (folder / "read.md").write_text(" ".join(words[:10_000]), "utf-8")
    (folder / "not read.png").write_bytes(b"words " * 8_000)
    return Corpus.of_texts(folder / "corpus", folder, HashEmbedder().embed, QUESTIONS, SEED)


def test_a_corpus_of_texts_has_their_words_in_order_and_asks_for_some(corpus_of_texts: Corpus) -> None:
    documents = list(corpus_of_texts.documents())
    text = " ".join(chain.from_iterable(each.texts for each in documents))
    read = (corpus_of_texts.folder.parent / "read.md").read_text("utf-8").lower()
    assert text.split() == re.findall("[a-z0-9]+", read)[: len(documents) * PASSAGES_EACH * 80]
    assert all(each.texts[0].startswith(each.title) for each in documents)
    assert all(f" {each.text} " in f" {text} " for each in corpus_of_texts.questions())


def test_texts_with_too_few_words_are_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("few words", "utf-8")
    with pytest.raises(ValueError, match=r"too few words"):
        Corpus.of_texts(tmp_path / "corpus", tmp_path, HashEmbedder().embed, QUESTIONS, SEED)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("made_of", ["corpus", "corpus_of_texts"])
def test_the_exact_answer_is_that_of_the_formula_over_the_texts(
    made_of: str, filtered: bool, request: pytest.FixtureRequest
) -> None:
    """Computed again from the texts, chunk by chunk, with the engine's analyser."""
    corpus: Corpus = request.getfixturevalue(made_of)
    analyser = Analyser()
    passages, answering = {}, set()
    for each in corpus.documents():
        if each.tagged or not filtered:
            answering |= set(range(each.first, each.first + PASSAGES_EACH))
        analysed = analyser.chunks(each.title, ((None, text) for text in each.texts))
        for offset, (words, vector) in enumerate(zip(analysed, each.vectors, strict=True)):
            passages[each.first + offset] = (Counter(words.terms), words.length, vector)
    average = sum(length for _, length, _ in passages.values()) / len(passages)
    question = corpus.questions()[0]
    asked = analyser.words_of(question.text)
    inside = Counter(term for counts, _, _ in passages.values() for term in counts)
    weights, total_weight = weigh_words(asked, inside, len(passages))
    scores = {}
    for number in answering:
        counts, length, vector = passages[number]
        bm25 = 0.0
        norm = 1.5 * (0.25 + 0.75 * length / average)
        for term, rarity in weights.items():
            bm25 += rarity * counts[term] * 2.5 / (counts[term] + norm)
        cosine, saturation = float(vector @ question.vector), SCORING.saturation * total_weight
        parts = m.Explanation(cosine=cosine, bm25=bm25, weight=SCORING.weight, saturation=saturation)
        scores[number] = explained(parts)
    due = sorted(scores, key=scores.__getitem__, reverse=True)[:TOP]
    answer = corpus.answers()["hybrid", filtered][0]
    assert answer.equals(due)
    assert [answer.scores[number] for number in due] == pytest.approx(
        [scores[number] for number in due], abs=2e-6
    )


def test_recall_counts_what_is_as_good_and_a_ranking_is_equal_in_any_order_of_equals() -> None:
    answer = Answer({number: 1 - number / 20 for number in range(9)} | {20: 0.3, 21: 0.3, 22: 0.1})
    assert answer.share([*range(9), 21]) == 1.0
    assert answer.share([*range(9), 22]) == 0.9
    assert answer.share([0] * TOP) == 0.1
    assert answer.equals([*range(9), 21])
    assert not answer.equals([1, 0, *range(2, 9), 21])
    assert not answer.equals(range(9))


def test_ranks_are_fused_reciprocally() -> None:
    assert fused([1, 2, 3], [3, 2, 4], top=3) == [3, 2, 1]


class Exact(Peer):
    """A peer that knows the exact results, so that only the benchmark itself is measured."""

    efforts: Sequence[int] = (0, 1)
    effort = 0

    def __init__(self, folder: Path) -> None:
        (folder / "something").write_bytes(bytes(2**20))
        corpus = Corpus(folder.parent / "corpus")
        self._places = {each.text: number for number, each in enumerate(corpus.questions())}
        self._vectors = {each.vector.tobytes(): number for number, each in enumerate(corpus.questions())}
        self._answers = corpus.answers()

    def insert(self, documents: Sequence[object]) -> None:
        assert len(documents) == TAGGED_EVERY

    def search(self, text: str | None, vector: NDArray[np.float32] | None, tag: str | None) -> Sequence[int]:
        place = self._places[text] if text is not None else -1
        place = self._vectors[vector.tobytes()] if vector is not None else place
        part = "vectors" if text is None else "words" if vector is None else "hybrid"
        if not self.effort and text is None:
            return []
        scores = self._answers[part, tag is not None][place].scores  # type: ignore[index]
        return sorted(scores, key=scores.__getitem__, reverse=True)[:TOP]


@pytest.mark.process
def test_kb_and_pgvector_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """kb ranks all questions exactly; a peer without its package is named. No files are left behind."""
    with tempfile.TemporaryDirectory(prefix="kb-bench-test-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL may run as another user
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        measure_kb_and_pgvector(monkeypatch)
        assert not list(Path(folder).iterdir())


def measure_kb_and_pgvector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "missing", Module("no_such_package_of_a_peer", "missing one"))
    notes: list[str] = []
    report = search.run(
        sizes=[SIZE], questions=QUESTIONS, peers=("kb", "pgvector", "missing"), note=notes.append
    )
    kb, pgvector = report.measured
    assert (kb.equal, kb.searches) == (2 * QUESTIONS, 2 * QUESTIONS)
    assert kb.recall == dict.fromkeys(("hybrid", "vectors", "words"), (1.0, 1.0))
    assert min(kb.inserts, kb.disk_mib, kb.memory_mib, kb.start, kb.hybrid.p50, kb.clients.p50) > 0
    assert report.missing == ["missing one"]
    assert "kb on SQLite" in report.text()
    assert pgvector.recall["vectors"] == (1.0, 1.0)


@pytest.mark.process
def test_the_effort_is_raised_until_the_recall_is_good(corpus: Corpus, tmp_path: Path) -> None:
    """Without effort the exact peer finds nothing; the second step finds all."""
    place = tmp_path / "peer"
    place.mkdir()
    (tmp_path / "corpus").symlink_to(corpus.folder)
    peer = Exact(place)
    assert search.tune(peer, corpus.questions(), corpus.answers()) == 1
