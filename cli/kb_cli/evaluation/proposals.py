"""Questions from the headings of a running engine's own documents, and the worst answered of them.

A heading names the subject of a passage in the owner's words. A heading that a search cannot find its own
document by shows documents that are hidden behind similar ones, or passages without their subject. Headings
of one word, and headings of several documents, such as "Introduction", are no questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from kb_cli.client import EngineClient
from kb_cli.evaluation.dataset import Question
from kb_cli.evaluation.runs import MAIN, Answered, Judged
from kb_cli.output import CliError
from kb_contracts.api import models as m
from kb_contracts.api.operations import GET_DOCUMENT, DocumentQuery
from kb_contracts.semantics.query import words_of

_BREADCRUMB = " > "
_MOST_DOCUMENTS = 300
_LEAST_WORDS = 2
_MOST_WORST = 10


class Worst(msgspec.Struct, frozen=True):
    """A question with the lowest nDCG@10 in mode `hybrid`, and the reason."""

    question: str
    document: str
    ndcg: float = msgspec.field(name=MAIN)
    reason: str


def proposed(client: EngineClient, documents: Sequence[m.Document], most: int, seed: int) -> list[Question]:
    """Return at most `most` questions: the last headings and titles of at most 300 documents, by chance.
    Raises CliError: no heading of the base is a question.
    """
    chance = Random(seed)  # noqa: S311 - a sample, not a secret
    sample = chance.sample(documents, min(_MOST_DOCUMENTS, len(documents)))
    texts: dict[str, str] = {}
    owners: dict[str, set[int]] = {}
    for document in documents:
        _note(document.title, document.id, texts, owners)
    for document in sample:
        detail = client.call(GET_DOCUMENT, path={"document_id": document.id}, query=DocumentQuery())
        for heading in {chunk.heading for chunk in detail.chunks if chunk.heading}:
            _note(heading.rsplit(_BREADCRUMB, 1)[-1], document.id, texts, owners)
    sampled = {document.id for document in sample}
    single = [
        (words, owner)
        for words, ids in owners.items()
        if len(ids) == 1 and (owner := next(iter(ids))) in sampled
    ]
    if not single:
        raise CliError("no document of the base has a heading of two words of its own")
    chosen = chance.sample(sorted(single), min(most, len(single)))
    return [
        Question(str(number), texts[words], {str(owner): 1})
        for number, (words, owner) in enumerate(chosen, 1)
    ]


def _note(heading: str, document: int, texts: dict[str, str], owners: dict[str, set[int]]) -> None:
    words = words_of(heading)
    if len(words) >= _LEAST_WORDS and len(heading) <= m.MAX_QUERY_CHARS:
        texts.setdefault(" ".join(words), heading)
        owners.setdefault(" ".join(words), set()).add(document)


def worst(judged: Sequence[Judged], titles: Mapping[str, str]) -> list[Worst]:
    """Return the worst questions, worst first, without those answered at rank 1."""
    low = sorted((each for each in judged if each.score("hybrid") < 1), key=lambda each: each.score("hybrid"))
    return [_explained(each, titles) for each in low[:_MOST_WORST]]


def _explained(judged: Judged, titles: Mapping[str, str]) -> Worst:
    (wanted,) = judged.gains
    by_words, by_meaning, both = (_rank(judged.modes[mode], wanted) for mode in ("fts", "vector", "hybrid"))
    first = next(iter(judged.modes["hybrid"].documents), None)
    ahead = "nothing is found" if first is None else f"“{titles.get(first, first)}” is first"
    if both is not None:
        why = f"at rank {both}"
    elif by_words is None and by_meaning is None:
        why = "beyond rank 10 by words and by meaning"
    elif by_words is None:
        why = f"at rank {by_meaning} by meaning, beyond rank 10 by words"
    else:
        why = f"at rank {by_words} by words, beyond rank 10 with the meaning"
    return Worst(judged.question, titles.get(wanted, wanted), judged.score("hybrid"), f"{why}; {ahead}")


def _rank(answered: Answered, document: str) -> int | None:
    return answered.documents.index(document) + 1 if document in answered.documents else None
