"""The chunks of the documents, with an index of their words and their vectors; how well they match."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from operator import mul
from uuid import uuid4

from .database import Database, Row
from .texts import Passage, vector, words

WEIGHT, SATURATION, FLOOR = 0.4, 2.0, 0.25


class Chunks:
    """All chunks, by the number of their document."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def replace(self, number: int, chunks: Sequence[Passage]) -> None:
        """Give a document these chunks and no others."""
        self.forget(number)
        for place, each in enumerate(chunks):
            counted = words(each.text)
            added = self._db.execute(
                "INSERT INTO chunks (uid, document, place, text, page, heading, first, beyond, length, "
                "vector) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                str(uuid4()), number, place, each.text, each.page, each.heading, each.start, each.end,
                counted.total(), array("f", vector(each.text)).tobytes(),
            )  # fmt: skip
            for word, times in counted.items():
                self._db.execute("INSERT INTO postings VALUES (?, ?, ?)", word, added.lastrowid, times)

    def forget(self, number: int) -> None:
        """Remove the chunks of a document."""
        self._db.execute(
            "DELETE FROM postings WHERE chunk IN (SELECT id FROM chunks WHERE document = ?)", number
        )
        self._db.execute("DELETE FROM chunks WHERE document = ?", number)

    def of(self, number: int, offset: int = 0, limit: int = -1) -> list[Row]:
        """The chunks of a document in order."""
        found = self._db.rows(
            "SELECT * FROM chunks WHERE document = ? ORDER BY place LIMIT ? OFFSET ?", number, limit, offset
        )
        return [chunk_of(row) for row in found]

    def scored(self, query: str, mode: str, numbers: Sequence[int]) -> list[tuple[float, Row, Row]]:
        """All chunks of these documents that match: score, row, explanation; best first."""
        by_words = self._bm25(words(query)) if mode != "vector" else {}
        asked = vector(query) if mode != "fts" else []
        weight = {"fts": 0.0, "vector": 1.0}.get(mode, WEIGHT)
        allowed, found = set(numbers), []
        for row in self._db.rows("SELECT * FROM chunks"):
            if row["document"] not in allowed:
                continue
            cosine = sum(map(mul, asked, array("f", row["vector"]))) if asked else None
            bm25 = by_words.get(row["id"])
            if bm25 is None and (cosine is None or cosine < FLOOR):
                continue
            near, matched = min(1.0, max(0.0, cosine or 0.0)), bm25 or 0.0
            score = weight * near + (1 - weight) * matched / (matched + SATURATION)
            told = {"cosine": cosine, "bm25": bm25, "weight": weight, "saturation": SATURATION}
            found.append((score, row, told))
        return sorted(found, key=lambda each: (-each[0], each[1]["id"]))

    def _bm25(self, asked: Mapping[str, int]) -> dict[int, float]:
        total = self._db.count("SELECT count(*) FROM chunks")
        mean = self._db.count("SELECT sum(length) FROM chunks") / max(1, total)
        scores: dict[int, float] = {}
        for word in asked:
            postings = self._db.rows(
                "SELECT chunk, times, length FROM postings JOIN chunks ON id = chunk WHERE word = ?", word
            )
            rarity = math.log(1 + (total - len(postings) + 0.5) / (len(postings) + 0.5))
            for row in postings:
                damped = row["times"] + 1.2 * (0.25 + 0.75 * row["length"] / mean)
                scores[row["chunk"]] = scores.get(row["chunk"], 0.0) + rarity * row["times"] * 2.2 / damped
        return scores


def chunk_of(row: Row) -> Row:
    """A chunk as it is told."""
    return {
        "id": row["id"], "uid": row["uid"], "index": row["place"], "text": row["text"], "page": row["page"],
        "heading": row["heading"], "start": row["first"], "end": row["beyond"],
    }  # fmt: skip
