"""`kb bench feedback`: what feedback does to the order of results, on a simulated log, with hostile voices.

Documents lie in topics and differ in how helpful they are, which no search sees: the semantic score says
whether a document is about the topic that is wanted, with noise. Readers look down the first ten, the lower
the less, open what seems to be about it, and now and then say whether it helped. What they say moves the
order that the next ones see. Then a hostile voice calls the most helpful documents useless and the least
helpful ones useful, again and again, and nDCG@10 is measured on questions that nobody has asked before.

Votes and scores are those of the contract (`kb_contracts.semantics`). In the last row every signal counts as
a voice of its own, which is what the rule of one voice guards against.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Any, ClassVar

import msgspec

from kb_contracts.api import models as m
from kb_contracts.semantics.feedback import NO_VOTES, Vote, Votes, feedback_score, tally, voted
from kb_contracts.semantics.ranking import DEFAULT_WEIGHTS, final_score
from kb_load.bench import Option
from kb_load.bench.runner import Report

STRONG = m.RankingWeights(semantic=0.6, recency=0.15, reputation=0.10, feedback=0.15)
"""Weights with three times the feedback of the default."""

TOPICS, OF_A_TOPIC, OTHERS, READERS = 40, 10, 20, 300
HOSTILE_REPEATS = 50
_ABOUT, _BESIDE, _NOISE = 0.55, 0.30, 0.08  # semantic scores of documents on the topic and off it
_OPENED, _OPENED_BESIDE, _RATED = 0.7, 0.1, 0.4
_FIRST = 10
_QUESTIONS = 200
_SEED = 20_260_301


@dataclass(frozen=True, slots=True)
class Question:
    """One search: its topic, and the semantic scores of the documents that are found."""

    topic: int
    semantic: Mapping[int, float]


@dataclass
class World:
    """Documents with their helpfulness, from 0 to 1, and what voices have said of them."""

    dice: Random
    helpful: Sequence[float]
    votes: dict[int, dict[str, Vote]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def of(cls, seed: int, topics: int = TOPICS) -> World:
        dice = Random(seed)
        return cls(dice, [dice.random() for _ in range(topics * OF_A_TOPIC)])

    def question(self) -> Question:
        topic = self.dice.randrange(len(self.helpful) // OF_A_TOPIC)
        about = range(topic * OF_A_TOPIC, (topic + 1) * OF_A_TOPIC)
        beside = self.dice.sample(range(len(self.helpful)), OTHERS)
        means = dict.fromkeys(beside, _BESIDE) | dict.fromkeys(about, _ABOUT)
        return Question(topic, {each: self._noisy(mean) for each, mean in sorted(means.items())})

    def _noisy(self, mean: float) -> float:
        return min(1.0, max(0.0, self.dice.gauss(mean, _NOISE)))

    def gain(self, document: int, topic: int) -> float:
        """What a document is worth to a question about the topic, from 0 to 3."""
        return round(3 * self.helpful[document]) if document // OF_A_TOPIC == topic else 0.0

    def record(self, document: int, voice: str, signal: m.Signal) -> None:
        votes = self.votes[document]
        votes[voice] = voted(votes.get(voice), signal)

    def read(self, question: Question, order: Sequence[int]) -> None:
        """One reader goes down the first results."""
        voice = f"reader {self.dice.randrange(READERS)}"
        for rank, document in enumerate(order[:_FIRST], 1):
            is_about = document // OF_A_TOPIC == question.topic
            if self.dice.random() > (_OPENED if is_about else _OPENED_BESIDE) / math.log2(rank + 1):
                continue
            self.record(document, voice, "clicked")
            if self.dice.random() < _RATED:
                helped = is_about and self.dice.random() < self.helpful[document]
                self.record(document, voice, "useful" if helped else "not_useful")

    def attack(self, voices: int, *, each_counts: bool = False) -> None:
        """Hostile voices turn the helpful and the useless documents around, each again and again."""
        for number in range(voices):
            for document, helpful in enumerate(self.helpful):
                for repeat in range(HOSTILE_REPEATS if abs(helpful - 0.5) > 0.25 else 0):
                    voice = f"hostile {number} {repeat if each_counts else ''}"
                    self.record(document, voice, "not_useful" if helpful > 0.5 else "useful")

    def tallies(self) -> dict[int, Votes]:
        return {document: tally(votes.values()) for document, votes in self.votes.items()}


def ordered(question: Question, votes: Mapping[int, Votes], weights: m.RankingWeights) -> list[int]:
    """The documents by their final scores; all are of today and of one kind of source."""

    def score(document: int) -> float:
        parts = m.RankingParts(
            semantic=question.semantic[document],
            recency=1.0,
            reputation=0.4,
            feedback=feedback_score(votes.get(document, NO_VOTES)),
            weights=weights,
            kind="keywords",
        )
        return final_score(parts)

    return sorted(question.semantic, key=lambda document: -score(document))


def ndcg(world: World, questions: Sequence[Question], weights: m.RankingWeights) -> float:
    """nDCG@10, on average."""
    votes = world.tallies()

    def discounted(documents: Sequence[int], topic: int) -> float:
        gains = (world.gain(document, topic) for document in documents[:_FIRST])
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))

    values = []
    for question in questions:
        best = sorted(question.semantic, key=lambda document: -world.gain(document, question.topic))
        found = discounted(ordered(question, votes, weights), question.topic)
        values.append(found / discounted(best, question.topic))
    return sum(values) / len(values)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """nDCG@10 with the default weights, and with three times the feedback."""

    name: str
    default: float
    strong: float


class FeedbackReport(Report, frozen=True, kw_only=True):
    """What the log did, and what hostile voices did to that."""

    columns: ClassVar[Mapping[str, str]] = {
        "feedback": "{0.name}",
        "nDCG@10, weight 0.05": "{0.default:.4f}",
        "nDCG@10, weight 0.15": "{0.strong:.4f}",
    }
    searches: int
    outcomes: Sequence[Outcome]

    def rows(self) -> Sequence[Any]:
        return self.outcomes

    def footer(self) -> Sequence[str]:
        return [f"a log of {self.searches} searches by {READERS} readers, {_QUESTIONS} questions measured"]


def outcomes(searches: int) -> Iterator[Outcome]:
    """Without feedback, after an honest log, and after attacks on it."""
    settings: Mapping[str, Callable[[World], None] | None] = {
        "none": None,
        "honest": lambda _world: None,
        "and one hostile voice": lambda world: world.attack(1),
        "and ten hostile voices": lambda world: world.attack(10),
        "one hostile voice, each signal counted": lambda world: world.attack(1, each_counts=True),
    }
    for name, attack in settings.items():
        values = []
        for weights in (DEFAULT_WEIGHTS, STRONG):
            world = World.of(_SEED)
            questions = [world.question() for _ in range(_QUESTIONS)]
            if attack is not None:
                log(world, searches, weights)
                attack(world)
            values.append(ndcg(world, questions, weights))
        yield Outcome(name=name, default=round(values[0], 4), strong=round(values[1], 4))


def log(world: World, searches: int, weights: m.RankingWeights) -> None:
    """Searches one after another, each read in the order that those before have made."""
    tallies: dict[int, Votes] = {}
    for _ in range(searches):
        question = world.question()
        order = ordered(question, tallies, weights)
        world.read(question, order)
        tallies |= {document: tally(world.votes[document].values()) for document in order[:_FIRST]}


def run(
    *,
    searches: Annotated[int, Option("searches in the log", high=100_000)] = 4_000,
    note: Callable[[str], None],
) -> FeedbackReport:
    """Simulate the log and the attacks; the same figures come out on every machine."""
    found = []
    for outcome in outcomes(searches):
        note(f"{outcome.name}: {outcome.default:.4f}, {outcome.strong:.4f}")
        found.append(outcome)
    return FeedbackReport(searches=searches, outcomes=found)
