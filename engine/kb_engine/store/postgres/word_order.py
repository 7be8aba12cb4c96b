"""The words of chunks in their order, for phrases and exclusions.

A row of `word_orders` has the words that `kb_contracts.semantics.query` compares, those of title, heading and
text behind a point each. The index on it finds the rows that hold all words of a phrase; `strpos` finds those
that hold them in a row.

The ids of the chunks go into the statements of the search, so that the words are compared once. Where both
the chunks that pass and the others are too many for that, or documents of an earlier version are still to be
indexed, the index proposes candidates instead (`store/wording.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

from kb_contracts.semantics.query import Wording, words_of
from kb_engine.store.postgres.connection import Db, rows, value

MOST_IDS = 50_000  # maximum number of ids in a statement
MOST_SCANS = 50  # maximum number of phrases and exclusions compared in SQL; a hostile query has hundreds
MOST_COMPARED = 20_000_000
"""Maximum number of chunks times phrases and exclusions; comparing so many takes about ten seconds."""
_LONGEST = 64
"""Length of a word in characters from which its digest stands for it: a key of the index is limited."""
_END = "."
_KEYS = "string_to_array(o.words, ' ')"
_HOLDS = "strpos(o.words, ?) > 0"
_IS_UNTOLD = "SELECT chunks * ?::bigint > ? OR EXISTS (SELECT FROM outdated_words) FROM totals"


class Passing(NamedTuple):
    """The chunks that pass (None: all), or those that do not."""

    among: Sequence[int] | None = None
    without: Sequence[int] = ()


def order_of(*parts: str) -> str:
    """Return the words of these texts as a row of the table has them."""
    return _in_a_row(chain(*([_END, *words_of(part)] for part in parts), [_END])).strip()


async def insert_orders(
    db: Db, chunk_ids: Sequence[int], title: str, texts: Iterable[tuple[str | None, str]]
) -> None:
    """Insert the words of chunks, given as pairs of heading and text."""
    orders = await asyncio.to_thread(
        lambda: [order_of(title, heading or "", text) for heading, text in texts]
    )
    records = zip(chunk_ids, orders, strict=True)
    await db.copy_records_to_table("word_orders", columns=("chunk_id", "words"), records=records)


async def passing(db: Db, wording: Wording) -> Passing | None:
    """Return the chunks that pass, or None if the table does not tell."""
    held, barred = wording.held, wording.barred
    if not held and not barred:
        return Passing()
    scans = len(held) + len(barred)
    if scans > MOST_SCANS or await value(db, _IS_UNTOLD, (scans, MOST_COMPARED)):
        return None
    if not held:
        anyone, of_each = zip(*map(_condition, barred), strict=True)
        if (found := await _ids(db, " OR ".join(anyone), list(chain(*of_each)))) is not None:
            return Passing(without=found)
    conditions = [*map(_condition, held), *((f"NOT {_HOLDS}", [_in_a_row(words)]) for words in barred)]
    of_each = [value for _, values in conditions for value in values]
    found = await _ids(db, " AND ".join(sql for sql, _ in conditions), of_each)
    return None if found is None else Passing(found)


def _condition(words: Sequence[str]) -> tuple[str, list[Any]]:
    """Return the condition on rows that hold these words in a row, which the index finds.

    Of alternatives the database checks all in each row that it found; splitting a row takes longest.
    """
    if len(words) == 1:
        return f"{_KEYS} @> ?::text[]", [_short(words)]
    return f"({_HOLDS} AND {_KEYS} @> ?::text[])", [_in_a_row(words), _short(words)]


async def _ids(db: Db, where: str, values: Sequence[Any]) -> list[int] | None:
    """Return the chunks that meet a condition; None if they are too many."""
    # The planner does not know that splitting all rows into words takes long.
    await rows(db, "SELECT set_config('enable_seqscan', 'off', true)")
    some = f"SELECT o.chunk_id FROM word_orders o WHERE {where} LIMIT {MOST_IDS + 1}"  # noqa: S608
    # The event loop decodes them as one value in a tenth of the time.
    found: list[int] = await value(db, f"SELECT ARRAY({some})", values)
    await rows(db, "SELECT set_config('enable_seqscan', 'on', true)")
    return found if len(found) <= MOST_IDS else None


def _in_a_row(words: Iterable[str]) -> str:
    return f" {' '.join(_short(words))} "


def _short(words: Iterable[str]) -> list[str]:
    return [word if len(word) < _LONGEST else blake2b(word.encode()).hexdigest()[:_LONGEST] for word in words]
