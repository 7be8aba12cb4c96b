"""The composition of a page: equal texts collapsed, neighbours merged, documents limited."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from .store import Row

Scored = tuple[float, Row, Row]
MOST_BESIDE = 5


@dataclass
class Entry:
    """A result in preparation: its neighbouring chunks, and further places of its text."""

    scored: Scored
    before: int = 0
    after: int = 0
    twins: list[Row] = field(default_factory=list)
    beside: list[int] = field(default_factory=list)

    def chunks(self) -> set[int]:
        return {self.scored[1]["id"], *self.beside, *(twin["chunk_id"] for twin in self.twins)}


def chosen(found: list[Scored], body: Row) -> list[Entry]:
    """The entries of a page, best first."""
    top, most = body["top"], body["per_document"]
    entries = [Entry(scored) for scored in found]
    if body["collapse"]:
        entries = _merged(_told_once(entries), top)
    if most is None:
        return entries[:top]
    counts: dict[int, int] = {}
    page: list[Entry] = []
    for entry in entries:
        score, row, _ = entry.scored
        number = counts.get(row["document"], 0)
        if number < most and score >= entries[0].scored[0] / 2 and len(page) < top:
            counts[row["document"]] = number + 1
            page.append(entry)
    rest = [entry for entry in entries if all(entry is not other for other in page)]
    page += rest[: top - len(page)]
    return [entry for entry in entries if any(entry is other for other in page)]


def _told_once(entries: list[Entry]) -> list[Entry]:
    kept: list[Entry] = []
    for entry in entries:
        row = entry.scored[1]
        like = next((other for other in kept if _same(other.scored[1]["text"], row["text"])), None)
        if like is None:
            kept.append(entry)
        else:
            like.twins.append({"document_id": row["document"], "chunk_id": row["id"]})
    return kept


def _same(one: str, other: str) -> bool:
    if sorted(re.findall(r"\d+", one)) != sorted(re.findall(r"\d+", other)):
        return False
    runs: list[set[Any]] = []
    for text in (one, other):
        words = text.lower().split()
        runs.append(set(zip(words, words[1:], words[2:], strict=False)) or {text.lower()})
    return len(runs[0] & runs[1]) >= 0.8 * len(runs[0] | runs[1])


def _merged(entries: list[Entry], top: int) -> list[Entry]:
    head = {(entry.scored[1]["document"], entry.scored[1]["place"]): entry for entry in entries[:top]}
    page = []
    for entry in entries[:top]:
        document, place = entry.scored[1]["document"], entry.scored[1]["place"]
        if head.pop((document, place), None) is None:
            continue
        while entry.before < MOST_BESIDE and (other := head.pop((document, place - entry.before - 1), None)):
            entry.before, entry.twins = entry.before + 1, entry.twins + other.twins
            entry.beside.append(other.scored[1]["id"])
        while entry.after < MOST_BESIDE and (other := head.pop((document, place + entry.after + 1), None)):
            entry.after, entry.twins = entry.after + 1, entry.twins + other.twins
            entry.beside.append(other.scored[1]["id"])
        page.append(entry)
    return page + entries[top:]
