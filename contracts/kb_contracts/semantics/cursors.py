"""Pages of one ranking: the content of a cursor, and the results after it.

A cursor is the rest of a ranking: ids of chunks with their scores, in order, and the totals of the response.
So page two continues page one, regardless of documents added, changed or removed since; removed chunks are
left out, as are the chunks of a changed document. An engine keeps no state, and the same cursor returns the
same page again. It is valid only with the request that it came from, and only for callers with the same
access scope. Its chunks are searched within the access scope of the sender, so a forged cursor reveals
nothing.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError

POOL = 300
"""Maximum number of results that can be paged through."""
_VERSION = 1
_MOST_PLACES = 11 * POOL
"""Each result with five merged chunks on either side."""

_Id = Annotated[int, Meta(ge=1, le=m.MAX_INTEGER)]


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A result of a later page: its chunk, and the values that cannot be read from the base again."""

    chunk_id: _Id
    score: Annotated[float, Meta(ge=0, le=1)]
    explain: m.Explanation | None = None
    duplicates: list[tuple[_Id, _Id]] = []
    """Document and chunk of each duplicate."""


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    version: int
    request: str
    total: m.Count
    total_exact: bool
    mode: m.Mode
    weak: bool
    reranked: bool | None
    rerank_failure: str | None
    places: Annotated[list[Place], Meta(max_length=_MOST_PLACES)]


def places_of(results: Sequence[m.SearchResult]) -> list[list[Place]]:
    """Return each result with the chunks that were merged into it, which are merged again on their page."""
    return [
        [
            Place(
                result.chunk.id,
                result.score,
                result.explain,
                [(each.document_id, each.chunk_id) for each in result.duplicates or ()],
            ),
            *(Place(chunk.id, result.score) for chunk in (*result.before, *result.after)),
        ]
        for result in results
    ]


def places_after(places: Sequence[list[Place]], page: Sequence[m.SearchResult]) -> list[list[Place]]:
    """Return the places after a page, beginning with merged chunks for which the page had no room.

    The first place always counts as used, even if the page is empty, so that paging ends.
    """
    lost = [row[1:] for row, result in zip(places, page, strict=False) if not (result.before or result.after)]
    return [*filter(None, lost), *places[max(1, len(page)) :]]


def cursor_after(
    request: m.SearchRequest,
    answer: m.SearchResponse,
    places: Sequence[list[Place]],
    reach: Reach | None = None,
) -> str:
    """Return the cursor of a page whose ranking continues with these places, for this access scope."""
    snapshot = _Snapshot(
        _VERSION,
        _digest(request, reach),
        answer.total,
        answer.total_exact is not False,
        answer.mode,
        answer.weak,
        None if answer.reranked is UNSET else answer.reranked,
        None if answer.rerank_failure is UNSET else answer.rerank_failure,
        [place for row in places for place in row],
    )
    return urlsafe_b64encode(msgspec.json.encode(snapshot)).decode().rstrip("=")


def opened(request: m.SearchRequest, reach: Reach | None = None) -> tuple[m.SearchResponse, list[Place]]:
    """Return the totals in the request's cursor, and the remaining places. Raises EngineError:
    `page_not_found`, the cursor is invalid, or is that of another request or access scope.
    """
    cursor = request.cursor or ""
    try:
        raw = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        snapshot = msgspec.json.decode(raw, type=_Snapshot)
    except (ValueError, msgspec.MsgspecError) as error:
        raise _no_page("is not from a response") from error
    if snapshot.version != _VERSION:
        raise _no_page("is not from a response")
    if snapshot.request != _digest(request, reach):
        raise _no_page("belongs to another request: repeat the original request with the cursor added")
    answer = m.SearchResponse(
        results=[],
        total=snapshot.total,
        mode=snapshot.mode,
        took_ms=0.0,
        weak=snapshot.weak,
        total_exact=UNSET if snapshot.total_exact else False,
        reranked=UNSET if snapshot.reranked is None else snapshot.reranked,
        rerank_failure=UNSET if snapshot.rerank_failure is None else snapshot.rerank_failure,
    )
    return answer, snapshot.places


def results_at(places: Sequence[Place], found: Mapping[int, m.SearchResult]) -> list[m.SearchResult]:
    """Return the results of the places whose chunks still exist (`found`, by id), as in the ranking."""
    return [
        msgspec.structs.replace(
            found[place.chunk_id],
            score=place.score,
            explain=place.explain,
            duplicates=[m.Duplicate(document_id=one, chunk_id=other) for one, other in place.duplicates]
            or UNSET,
        )
        for place in places
        if place.chunk_id in found
    ]


def _digest(request: m.SearchRequest, reach: Reach | None) -> str:
    encoded = msgspec.json.encode(msgspec.structs.replace(request, cursor=None))
    if reach is not None:
        encoded += msgspec.json.encode(reach, order="sorted")
    return hashlib.sha256(encoded).hexdigest()[:16]


def _no_page(why: str) -> EngineError:
    return EngineError("page_not_found", f"The cursor {why}.")
