"""The base of `bench search`: passages and questions by seed, and the exact answers to these.

Words follow Zipf's law, vectors lie around some hundred centres, a question has the words of Zipf's law and
a vector near that of a passage. Or the words are from text files, a question is a few of them in a row,
and the vectors are made of them by a static embedder. All of it lies in files of arrays that every peer's
process maps: a text is made of its words when a peer asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kb_contracts.api.models import Mode
from kb_engine.index.port import Scoring, Vectors
from kb_engine.index.score import K1, B, Formula
from kb_engine.index.words import MARKED_TITLE, TITLE_MARK, TITLE_WEIGHT, Analyser, looked_up, weigh_words

DIMENSIONS = 384
PASSAGES_EACH = 50
TAG = "team:actuaries"
TAGGED_EVERY = 20
TOP = 10
SCORING = Scoring(weight=0.5, saturation=0.5, floor=0.36, cosine_floor=0.3)
"""The constants of MiniLM, whose dimensions these vectors have."""
Part = Literal["hybrid", "vectors", "words"]
PARTS: dict[Part, Mode] = {"hybrid": "hybrid", "vectors": "vector", "words": "fts"}

TEXTS = (".md", ".rst", ".txt")
"""The files that a corpus of texts is made of."""
_WORD = re.compile("[a-z0-9]+")
Embed = Callable[[Sequence[str]], Vectors]
"""Texts to vectors of `DIMENSIONS` at the most, of length 1."""
_VOCABULARY = 40_000
_CENTRES = 300
_SHORTEST, _LONGEST = 40, 80
_TITLE = 5
_AT_ONCE = 100_000
_KEPT = 50
_NOISE = 2e-6
"""Tolerance of scores rounded to six places."""


@dataclass(frozen=True, slots=True)
class Document:
    """A title, and passages of it; their numbers count from `first`."""

    number: int
    title: str
    texts: list[str]
    vectors: Vectors
    tagged: bool

    @property
    def first(self) -> int:
        return self.number * PASSAGES_EACH

    @property
    def full_texts(self) -> list[str]:
        """The passages for a peer without weights of fields: the title as often as it counts."""
        return [f"{' '.join([self.title] * TITLE_WEIGHT)} {text}" for text in self.texts]


@dataclass(frozen=True, slots=True)
class Question:
    """A question: words and vector."""

    text: str
    vector: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Answer:
    """The exact answer to a question: the best passages, more than are asked for, with their scores."""

    scores: dict[int, float]

    def share(self, found: Sequence[int]) -> float:
        """Recall at `TOP`: the share of found passages that score at least the exact answer's last one."""
        due = sorted(self.scores.values(), reverse=True)[:TOP]
        if not due:
            return 1.0
        good = sum(self.scores.get(one, 0.0) >= due[-1] - _NOISE for one in set(found[:TOP]))
        return min(1.0, good / len(due))

    def equals(self, found: Sequence[int]) -> bool:
        """Return True if this is the exact ranking; passages of equal score may be in any order."""
        due = sorted(self.scores.values(), reverse=True)[:TOP]
        if len(set(found)) != len(due):
            return False
        return all(
            abs(self.scores.get(one, -1.0) - score) <= _NOISE for one, score in zip(found, due, strict=True)
        )


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus. Passage `n` is the one of document `n // PASSAGES_EACH`."""

    folder: Path

    @classmethod
    def made(cls, folder: Path, size: int, questions: int, seed: int) -> Corpus:
        """Write it: `size` passages, a multiple of `PASSAGES_EACH`."""
        if size % PASSAGES_EACH:
            raise ValueError(f"documents have {PASSAGES_EACH} passages, and {size} is no multiple of that")
        folder.mkdir(parents=True)
        rng, corpus = np.random.default_rng(seed), cls(folder)
        centres = centres_of(rng, DIMENSIONS)
        corpus._keep_vocabulary(_spoken())
        words = _writable(folder / "words.npy", (size, _LONGEST), np.uint32)
        vectors = _writable(folder / "vectors.npy", (size, DIMENSIONS), np.float32)
        for first in range(0, size, _AT_ONCE):
            count = min(_AT_ONCE, size - first)
            words[first : first + count] = _ranks(rng, (count, _LONGEST))
            near = centres[rng.integers(0, _CENTRES, count)]
            vectors[first : first + count] = around(near, rng)
        np.save(folder / "lengths.npy", rng.integers(_SHORTEST, _LONGEST + 1, size, dtype=np.uint8))
        np.save(folder / "titles.npy", _ranks(rng, (size // PASSAGES_EACH, _TITLE)))
        np.save(folder / "question_words.npy", _ranks(rng, (questions, 7)))
        np.save(folder / "question_lengths.npy", rng.integers(3, 8, questions, dtype=np.uint8))
        meant = vectors[rng.integers(0, size, questions)] * np.float32(np.sqrt(DIMENSIONS))
        np.save(folder / "question_vectors.npy", around(meant, rng))
        return corpus

    @classmethod
    def of_texts(cls, folder: Path, texts: Path, embed: Embed, questions: int, seed: int) -> Corpus:
        """Write it from the files in `texts` (`TEXTS`): their words, in small letters, one after the other.
        Raises ValueError: there are not words enough for a document.
        """
        files = sorted(file for file in texts.rglob("*") if file.suffix in TEXTS and file.is_file())
        read = (_WORD.findall(file.read_text("utf-8", "replace").lower()) for file in files)
        numbers: dict[str, int] = {}
        found = (numbers.setdefault(word, len(numbers)) for word in chain.from_iterable(read))
        ranks = np.fromiter(found, np.uint32)
        rng, corpus = np.random.default_rng(seed), cls(folder)
        size = len(ranks) // _LONGEST // PASSAGES_EACH * PASSAGES_EACH
        if not size:
            raise ValueError(f"{texts}: files in {', '.join(TEXTS)} have too few words for a document")
        folder.mkdir(parents=True)
        corpus._keep_vocabulary(list(numbers))
        words = ranks[: size * _LONGEST].reshape(size, _LONGEST)
        np.save(folder / "words.npy", words)
        np.save(folder / "lengths.npy", np.full(size, _LONGEST, np.uint8))
        np.save(folder / "titles.npy", words[::PASSAGES_EACH, :_TITLE])
        lengths = rng.integers(3, 8, questions, dtype=np.uint8)
        starts = rng.integers(0, _LONGEST - 7, questions)[:, np.newaxis] + np.arange(7)
        snippets = words[rng.integers(0, size, questions)[:, np.newaxis], starts]
        np.save(folder / "question_words.npy", snippets)
        np.save(folder / "question_lengths.npy", lengths)
        vectors = _writable(folder / "vectors.npy", (size, DIMENSIONS), np.float32)
        for first in range(0, size, _AT_ONCE):
            vectors[first : first + _AT_ONCE] = _padded(
                embed([corpus.text(row) for row in words[first : first + _AT_ONCE]])
            )
        meant = [corpus.text(row[:length]) for row, length in zip(snippets, lengths, strict=True)]
        np.save(folder / "question_vectors.npy", _padded(embed(meant)))
        return corpus

    def _keep_vocabulary(self, words: Sequence[str]) -> None:
        (self.folder / "vocabulary").write_text("\n".join(words), "utf-8")

    @cached_property
    def vocabulary(self) -> list[str]:
        """The words by their numbers."""
        return (self.folder / "vocabulary").read_text("utf-8").split("\n")

    def text(self, words: NDArray[np.generic]) -> str:
        """These words."""
        return " ".join([self.vocabulary[word] for word in words.tolist()])

    def array(self, name: str) -> NDArray[Any]:
        array: NDArray[Any] = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return array

    @property
    def size(self) -> int:
        """In passages."""
        return len(self.array("lengths"))

    def documents(self) -> Iterator[Document]:
        words, lengths, titles, vectors = map(self.array, ("words", "lengths", "titles", "vectors"))
        for number, title in enumerate(titles):
            passages = slice(number * PASSAGES_EACH, (number + 1) * PASSAGES_EACH)
            texts = [
                self.text(row[:length])
                for row, length in zip(words[passages], lengths[passages], strict=True)
            ]
            own = np.array(vectors[passages], np.float32)
            yield Document(number, self.text(title), texts, own, number % TAGGED_EVERY == 0)

    def questions(self) -> list[Question]:
        words, lengths, vectors = map(self.array, ("question_words", "question_lengths", "question_vectors"))
        return [
            Question(self.text(row[:length]), np.array(vector, np.float32))
            for row, length, vector in zip(words, lengths, vectors, strict=True)
        ]

    def answers(self) -> dict[tuple[Part, bool], list[Answer]]:
        """The exact answers to the questions, by part and whether the tag is asked for.

        Cosines are of float32, BM25 is over all words, in double precision, with the statistics of the whole
        base, whatever the tag leaves of it.
        """
        questions, terms = self.questions(), _Postings(self)
        tagged = np.arange(self.size) // PASSAGES_EACH % TAGGED_EVERY == 0
        vectors = np.asarray(self.array("vectors"))
        found: dict[tuple[Part, bool], list[Answer]] = {
            (part, filtered): [] for part in PARTS for filtered in (False, True)
        }
        for number, question in enumerate(questions):
            cosines = (vectors @ question.vector).astype(np.float64)
            bm25, reach = terms.bm25(number)
            for part, mode in PARTS.items():
                scores = Formula(mode, SCORING, reach).exact(
                    None if part == "words" else cosines, None if part == "vectors" else bm25
                )
                found[part, False].append(_best(scores, np.flatnonzero(scores > 0)))
                found[part, True].append(_best(scores, np.flatnonzero((scores > 0) & tagged)))
        return found


class _Postings:
    """The words of the questions in the passages, counted as the engine's analyser does."""

    def __init__(self, corpus: Corpus) -> None:
        numbers: dict[str, int] = {}
        analyser = Analyser()
        analysed = analyser.chunks("", ((None, word) for word in corpus.vocabulary))
        term_of = np.array([numbers.setdefault(each.terms[0], len(numbers)) for each in analysed])
        count = len(numbers)
        self._numbers = numbers | {f"{TITLE_MARK}{term}": count + number for term, number in numbers.items()}
        words, lengths, titles = map(corpus.array, ("words", "lengths", "titles"))
        self._questions = [
            [word[:1] for word in analyser.words_of(question.text)] for question in corpus.questions()
        ]
        needed = np.zeros(term_of.max() + 1, np.bool_)
        needed[[numbers[word[0]] for words_of_one in self._questions for word in words_of_one]] = True
        parts = []
        for first in range(0, corpus.size, _AT_ONCE):
            rows = np.arange(first, min(first + _AT_ONCE, corpus.size))
            text = term_of[words[rows]]
            inside = np.arange(_LONGEST) < np.asarray(lengths[rows])[:, None]
            title = term_of[titles[rows // PASSAGES_EACH]]
            for table, holds, times in (
                (text, inside & needed[text], 1),
                (title, needed[title], TITLE_WEIGHT),
            ):
                places, columns = np.nonzero(holds)
                once = table[places, columns].astype(np.int64) * corpus.size + rows[places]
                parts.append(np.repeat(once, times))
            marked = np.unique(once) + count * corpus.size
            parts.append(np.repeat(marked, MARKED_TITLE // _TITLE))
        keys, self._counts = np.unique(np.concatenate(parts), return_counts=True)
        self._terms, self._passages = np.divmod(keys, corpus.size)
        self._lengths = np.asarray(lengths, np.float64) + _TITLE

    def bm25(self, question: int) -> tuple[NDArray[np.float64], float]:
        """Return the BM25 score of all passages, and the question's maximum."""
        lengths, words = self._lengths, self._questions[question]
        sums = np.zeros(len(lengths))
        numbers = {term: self._numbers[term] for term in looked_up(words)}
        owned = {
            term: slice(*np.searchsorted(self._terms, (number, number + 1)))
            for term, number in numbers.items()
        }
        counts = {term: own.stop - own.start for term, own in owned.items()}
        weights, total_weight = weigh_words(words, counts, len(lengths))
        for term, own in owned.items():
            passages, often = self._passages[own], self._counts[own]
            norm = K1 * (1 - B + B * lengths[passages] / lengths.mean())
            sums[passages] += weights[term] * often * (K1 + 1) / (often + norm)
        return sums, total_weight


def _best(scores: NDArray[np.float64], answering: NDArray[np.intp]) -> Answer:
    if len(answering) > _KEPT:
        answering = answering[np.argpartition(-scores[answering], _KEPT)[:_KEPT]]
    return Answer(dict(zip(answering.tolist(), scores[answering].tolist(), strict=True)))


def _writable(path: Path, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    array: NDArray[Any] = np.lib.format.open_memmap(path, "w+", dtype, shape)
    return array


def _ranks(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.uint16]:
    """Words by Zipf's law: the n-th is 1/n as frequent as the first."""
    shares = np.cumsum(1 / np.arange(1, _VOCABULARY + 1))
    drawn = np.searchsorted((shares / shares[-1]).astype(np.float32), rng.random(shape, np.float32))
    return np.minimum(drawn, _VOCABULARY - 1).astype(np.uint16)


def centres_of(rng: np.random.Generator, dimensions: int) -> Vectors:
    """Return the vectors that those of passages lie around."""
    return rng.standard_normal((_CENTRES, dimensions), dtype=np.float32)


def around(near: Vectors, rng: np.random.Generator) -> Vectors:
    """Return a vector of length 1 near each of these."""
    vectors = near + rng.standard_normal(near.shape, dtype=np.float32) * np.float32(0.6)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def _spoken() -> list[str]:
    """Return pronounceable words, in an order independent of their letters."""
    signs = "bdfgklmnprtv"
    words = ["".join(each) for each in product(signs, "aeiou", signs, "aeiou", signs)]
    return [words[place] for place in np.random.default_rng(0).permutation(len(words))[:_VOCABULARY]]


def static_embedder() -> Embed:
    """Return WordLlama, with its weights in its package: the mean of the vectors of a text's tokens.
    Raises ModuleNotFoundError: the package is not installed.
    """
    import wordllama

    # It downloads into its folder, but has all that it needs.
    folder = Path(wordllama.__file__).parent
    model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    return lambda texts: np.asarray(model.embed(list(texts), norm=True), np.float32)


def _padded(vectors: Vectors) -> Vectors:
    """Pad vectors with zeros to `DIMENSIONS`, which changes no cosine."""
    return np.pad(vectors, ((0, 0), (0, DIMENSIONS - vectors.shape[1])))
