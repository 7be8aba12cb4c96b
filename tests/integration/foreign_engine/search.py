"""Searches: the selection of documents, and the answer for the matching chunks."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime

from .citations import citation
from .pages import Entry, Scored, chosen
from .promise import Refused
from .queries import Asked, taken_apart
from .store import Documents, Row, chunk_of
from .texts import first_line

WEAK = 0.2
SIMILAR = 0.6
USUAL = {"semantic": 0.7, "recency": 0.15, "reputation": 0.1, "feedback": 0.05}
REPUTED = {"confluence": 1.0, "web": 0.7, "manual": 0.4}
FEW = 6
MOST_CURSORS = 1_000
_DATED = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIMED = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,6})?([Zz]|[+-]\d{2}:\d{2})")


class Search:
    """Searches over the documents."""

    def __init__(self, documents: Documents, summary: Sequence[str]) -> None:
        """`summary` are the members of a document in a result."""
        self._documents = documents
        self._summary = summary
        self._rest: dict[str, tuple[Row, Row, list[Scored]]] = {}

    def answer(self, body: Row) -> Row:
        """Return the matching passages, within `max_chars`."""
        began, mode = time.monotonic(), mode_of(body)
        if body["cursor"] is None:
            facts, best = self._best(body, mode)
        else:
            facts, best = self._left(body)
        results, entries, omitted, left = [], chosen(best, body), 0, room(body)
        for entry in entries:
            if left is not None and left <= 0:
                omitted += 1
                continue
            result = self._result(entry, body, left)
            left = None if left is None else left - len(result["chunk"]["text"])
            results.append(result)
        if body["citations"]:
            for result in results:
                chunk = result["chunk"]
                result["citation"] = citation(result["document"], chunk, chunk["text"], chunk["start"])
        if body["detail"] == "locations":
            for result in results:
                for chunk in (result["chunk"], *result["before"], *result["after"]):
                    chunk["text"] = ""
        answer = {
            "results": results, "mode": mode, "omitted": omitted,
            "took_ms": (time.monotonic() - began) * 1000, **facts,
        }  # fmt: skip
        if body["rerank"]:
            answer |= {"reranked": False, "rerank_failure": "Nothing here reranks."}
        given = {number for entry in entries[: max(1, len(results))] for number in entry.chunks()}
        rest = [each for each in best if each[1]["id"] not in given]
        if body["pages"] and rest:
            answer["next_cursor"] = self._keep(body, facts, rest)
        return answer

    def _keep(self, body: Row, facts: Row, rest: list[Scored]) -> str:
        cursor = secrets.token_urlsafe(24)
        self._rest[cursor] = ({**body, "cursor": None}, facts, rest)
        while len(self._rest) > MOST_CURSORS:
            self._rest.pop(next(iter(self._rest)))
        return cursor

    def _left(self, body: Row) -> tuple[Row, list[Scored]]:
        asked, facts, rest = self._rest.get(body["cursor"], (None, {}, []))
        if asked != {**body, "cursor": None}:
            raise Refused("page_not_found", "No such cursor of this request.")
        numbers = {document["id"] for document in self._chosen(body)}
        has = self._documents.chunks.has
        return facts, [each for each in rest if each[1]["document"] in numbers and has(each[1]["id"])]

    def _best(self, body: Row, mode: str) -> tuple[Row, list[Scored]]:
        """The candidates of all pages, and the facts about the whole answer."""
        numbers = [document["id"] for document in self._chosen(body)]
        asked = taken_apart(body["query"])
        scored = self._documents.chunks.scored(asked.plain, mode, numbers)
        likely = [each for each in scored if each[0] >= body["min_score"]]
        raised = asked.beside > FEW and not body["strict"]
        liked, asked.wanted = (asked.wanted, []) if raised else ([], asked.wanted)
        found = [each for each in likely if self._fits(each[1], asked)]
        total, weak = len(found), not found or found[0][0] < WEAK
        if liked:
            found = self._raised(found, Asked(wanted=liked))
        elif not found and asked.wanted and not body["strict"]:
            others = Asked(unwanted=asked.unwanted)
            found = [
                (score, row | {"without_phrase": True}, explained)
                for score, row, explained in likely
                if self._fits(row, others)
            ]
        best = found[: max(100, 3 * body["top"], 300 if body["pages"] else 0)]
        if body["ranking"] is not None:
            best = self._ranked(best, body["query"], body["ranking"])
        return {"total": total, "weak": weak}, best

    def _raised(self, found: list[Scored], liked: Asked) -> list[Scored]:
        """Return the hits; the score of a hit with the phrases is nearer to 1."""
        raised = []
        for score, row, explained in found:
            held = liked.held(
                self._documents.one(row["document"])["title"], row["heading"] or "", row["text"]
            )
            raised.append((score + 0.1 * held * (1 - min(1.0, score)), row, explained | {"phrases": held}))
        return sorted(raised, key=lambda each: -each[0])

    def _fits(self, row: Row, asked: Asked) -> bool:
        if not asked.wanted and not asked.unwanted:
            return True
        return asked.fits(self._documents.one(row["document"])["title"], row["heading"] or "", row["text"])

    def _ranked(self, found: list[Scored], query: str, ranking: Row) -> list[Scored]:
        """The same hits with their final scores."""
        weights = dict.fromkeys(USUAL, 0.0) | ranking.get("ranking_weights", {})
        if not any(weights.values()):
            weights = USUAL
        if abs(math.fsum(weights.values()) - 1) > 1e-6:
            raise Refused("invalid_parameter", "Weights add up to 1.", parameter="ranking.ranking_weights")
        reputed = REPUTED | ranking.get("source_type_weight", {})
        decay = ranking.get("decay_rate")
        ranked = []
        for score, row, explained in found:
            document = self._documents.one(row["document"])
            age = datetime.now(UTC) - datetime.fromisoformat(document["updated_at"])
            source_type = document["metadata"].get("source_type")
            known = isinstance(source_type, str) and source_type in reputed
            parts = {
                "semantic": min(1.0, score),
                "recency": math.exp(-(0.01 if decay is None else decay) * max(0, age.days)),
                "reputation": reputed[source_type if known else "manual"],
                "feedback": self._documents.feedback(document["id"])["score"],
            }
            final = sum(weight * parts[name] for name, weight in weights.items())
            explained = explained | {"ranking": {**parts, "weights": weights, "kind": kind_of(query)}}
            ranked.append((final, row, explained))
        return sorted(ranked, key=lambda each: -each[0])

    def _result(self, entry: Entry, body: Row, left: int | None) -> Row:
        score, row, explained = entry.scored
        document = self._documents.one(row["document"])
        chunk, place = chunk_of(row), row["place"]
        if left is not None:
            chunk["text"] = chunk["text"][:left]
        wider = 0 if body["detail"] == "locations" else body["neighbors"]
        first, last = max(0, place - max(wider, entry.before)), place + max(wider, entry.after)
        near = self._documents.chunks.of(document["id"], first, last + 1 - first) if first < last else []
        return {
            "chunk": chunk, "score": min(1.0, score), "tags": document["tags"],
            "explain": explained if body["explain"] else None,
            "document": {name: document[name] for name in self._summary},
            "truncated": len(chunk["text"]) < len(row["text"]),
            "before": [each for each in near if each["index"] < place],
            "after": [each for each in near if each["index"] > place],
            **({"duplicates": entry.twins} if entry.twins else {}),
            **({"without_phrase": True} if "without_phrase" in row else {}),
        }  # fmt: skip

    def similar(self, note: Row, most: int) -> list[Row]:
        """The notes nearest to the first passage of this one, with the first line of each."""
        (first,) = self._documents.chunks.of(note["id"], 0, 1)
        notes = {"limit": -1, "offset": 0, "sort_by": "id", "sort_order": "asc", "doc_type": "note"}
        numbers = {each["id"] for each in self._documents.page(notes)["documents"]} - {note["id"]}
        found: dict[int, Row] = {}
        for score, row, _ in self._documents.chunks.scored(first["text"], "vector", [*numbers]):
            if score >= SIMILAR:
                document = self._documents.one(row["document"])
                line = first_line(row["text"])
                found.setdefault(
                    document["id"],
                    {
                        "id": document["id"],
                        "uid": document["uid"],
                        "first_line": line,
                        "score": min(1.0, score),
                    },
                )
        return [*found.values()][:most]

    def _chosen(self, body: Row) -> list[Row]:
        filters = body["filters"] or {}
        first, last = (_moment(filters, name) for name in ("date_from", "date_to"))
        if first and last and first > last:
            raise Refused("contradiction", "The end is before the start.", parameter="filters.date_to")
        field = filters.get("date_field", "created_at")
        everything = {"limit": -1, "offset": 0, "sort_by": "id", "sort_order": "asc"}
        everything["doc_type"] = body["doc_type"]
        return [
            document
            for document in self._documents.page(everything)["documents"]
            if set(body["tags"]) <= set(document["tags"])
            and (not body["tags_any"] or set(body["tags_any"]) & set(document["tags"]))
            and (filters.get("format") is None or document["format"] in map(str.lower, filters["format"]))
            and (
                filters.get("source_type") is None
                or str(document["metadata"].get("source_type", "")) in filters["source_type"]
            )
            and any(
                path.startswith(filters.get("source_path_prefix") or "")
                for path in document["source_paths"] or ([] if filters.get("source_path_prefix") else [""])
            )
            and (not first or datetime.fromisoformat(document[field]) >= first)
            and (not last or datetime.fromisoformat(document[field]) <= last)
        ]


def kind_of(query: str) -> str:
    """Classify a query by its form."""
    words = query.split()
    odd = any(re.search(r"\w[._/\\#@$:]+\w", word) for word in words)
    if odd or '"' in query or any(re.search(r"\d", word) and re.search("[a-zA-Z]", word) for word in words):
        return "exact"
    return "question" if query.rstrip().endswith("?") or len(words) >= 6 else "keywords"


def room(body: Row) -> int | None:
    """Maximum total length of the texts in characters (three per token), or None if unlimited."""
    if body["detail"] == "locations":
        return None
    bounds = [body["max_chars"], None if body["max_tokens"] is None else 3 * body["max_tokens"]]
    return min((bound for bound in bounds if bound is not None), default=None)


def mode_of(body: Row) -> str:
    """Return the mode of a search.

    Raises:
        Refused: `mode` and `fts_only` contradict each other.
    """
    mode, only = body.get("mode"), body.get("fts_only")
    if (only is True and mode not in {None, "fts"}) or (only is False and mode == "fts"):
        raise Refused("contradiction", "mode and fts_only exclude each other.", parameter="fts_only")
    return "fts" if only else mode or "hybrid"


def _moment(filters: Row, name: str) -> datetime | None:
    """The time in a filter; for a day its beginning, or its end in `date_to`.

    Raises:
        Refused: it is not a time.
    """
    text = filters.get(name)
    if text is None:
        return None
    try:
        if _DATED.fullmatch(text):
            day = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
            return (
                day if name == "date_from" else day.replace(hour=23, minute=59, second=59, microsecond=999999)
            )
        if _TIMED.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Refused(
        "invalid_parameter", "Write 2025-01-31 or 2025-01-31T10:00:00Z.", parameter=f"filters.{name}"
    )
