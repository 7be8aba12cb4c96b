"""The mutants of RAGler's operations, one promise each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import msgspec
from msgspec import UNSET

from kb_contracts.access.reach import RIGHTS
from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics import collections as collection_rules
from kb_contracts.semantics.requests import RateWindows
from kb_http import mount, requests
from kb_http.mount import Handler
from kb_http.requests import Incoming
from kb_simulator.engine import collections, search
from kb_simulator.engine.collections import Description
from kb_simulator.engine.handlers import CURRENT
from tests.mutation import misbehaving as mis
from tests.mutation.breaking import (
    Break,
    Breaks,
    Mutant,
    answers,
    around,
    asked,
    body,
    filters,
    forgives,
    mutant,
    mutants_of,
    query,
    replaced,
    says,
    status_of_code,
    status_of_operation,
)

VECTOR, COLLECTIONS, PROTOCOL = "test_vector_search", "test_collections", "test_protocol"

# --- ways to break them ---------------------------------------------------------------------------


def results(**members: Any) -> Break:
    """Replace members of every result of a search; a function is called with each result."""

    def changed(answer: r.VectorSearchResponse) -> dict[str, Any]:
        return {"results": [_with(result, members) for result in answer.results]}

    return answers("vectorSearch", changed)


def metadata(**members: Any) -> Break:
    return results(metadata=lambda result: _with(result.metadata, members))


def statistics(**members: Any) -> Break:
    return answers("getCollection", lambda detail: {"statistics": _with(detail.statistics, members)})


def summaries(**members: Any) -> Break:
    return answers(
        "listCollections", lambda answer: {"collections": [_with(one, members) for one in answer.collections]}
    )


def _with(value: Any, members: dict[str, Any]) -> Any:
    given = {name: member(value) if callable(member) else member for name, member in members.items()}
    return msgspec.structs.replace(value, **given)


async def nothing_found(incoming: Incoming, _inner: Handler) -> r.VectorSearchResponse:
    return r.VectorSearchResponse(results=[], total=0, query=incoming.body.query, execution_time=0.1)


async def by_its_id_alone(incoming: Incoming, inner: Handler) -> Any:
    return await inner(mis.with_body(incoming, msgspec.structs.replace(incoming.body, collection_name=None)))


async def whatever_the_dates(incoming: Incoming, inner: Handler) -> Any:
    return await inner(mis.with_body(incoming, msgspec.structs.replace(incoming.body, filters=None)))


async def all_of_the_tags(incoming: Incoming, inner: Handler) -> Any:
    answer = await inner(incoming)
    assert isinstance(answer, r.VectorSearchResponse)
    wanted = set(incoming.body.filters.tags) if incoming.body.filters else set()
    kept = [each for each in answer.results if wanted.issubset(each.metadata.tags)]
    return msgspec.structs.replace(answer, results=kept)


async def with_drafts(incoming: Incoming, inner: Handler) -> Any:
    answer = await inner(incoming)
    assert isinstance(answer, r.VectorSearchResponse)
    state = CURRENT.get().namespace.state
    return msgspec.structs.replace(answer, total=answer.total + len(state._waiting))


async def with_the_collections_of_drafts(incoming: Incoming, inner: Handler) -> Any:
    answer = await inner(incoming)
    assert isinstance(answer, r.CollectionList)
    jobs = CURRENT.get().namespace.state.jobs.values()
    names = {name for record in jobs for name in r.names_in(record.job.tags)}
    more = [
        r.CollectionSummary(
            id=r.collection_id(name),
            name=name,
            description="",
            chunk_count=0,
            created_by=r.ENGINE_USER,
            created_at=mis.EARLY,
        )
        for name in sorted(names - {each.name for each in answer.collections})
    ]
    return msgspec.structs.replace(answer, collections=[*answer.collections, *more])


def tokens_of_all(_statistics: r.CollectionStatistics) -> int:
    everyone = CURRENT.get().namespace.state.documents.by_id.values()
    return sum(collections.estimated_tokens(chunk.text) for stored in everyone for chunk in stored.chunks)


async def invented(incoming: Incoming, _inner: Handler) -> r.CollectionDetail:
    return r.CollectionDetail(
        id=incoming.path["collection_id"],
        name="guides",
        description="",
        chunk_count=0,
        created_by=r.ENGINE_USER,
        created_at=mis.EARLY,
        updated_at=mis.EARLY,
        statistics=r.CollectionStatistics(total_tokens=0, avg_chunk_size=0.0, last_published=mis.EARLY),
    )


async def gone_when_empty(incoming: Incoming, inner: Handler) -> Any:
    answer = await inner(incoming)
    assert isinstance(answer, r.CollectionDetail)
    if answer.chunk_count == 0:
        raise EngineError("collection_not_found", "It is empty.")
    return answer


async def only_said(incoming: Incoming, inner: Handler) -> Any:
    described = CURRENT.get().namespace.state.collections.described
    before = dict(described)
    answer = await inner(incoming)
    described.clear()
    described.update(before)
    return answer


async def refused_to_service(incoming: Incoming, inner: Handler) -> Any:
    if incoming.access.rights != RIGHTS:
        raise EngineError("forbidden", "Not this role.")
    return await inner(incoming)


async def unknown(_incoming: Incoming, _inner: Handler) -> Any:
    raise EngineError("route_not_found", "There is no such path.")


def changed_always(standing: Description, wanted: r.CollectionRequest, now: int) -> Description:
    return Description(standing.id, wanted, wanted.created_by or standing.created_by, standing.created, now)


def creator_reset(standing: Description, wanted: r.CollectionRequest, now: int) -> Description:
    return Description(standing.id, wanted, wanted.created_by or r.ENGINE_USER, standing.created, now)


def without_default_source_type(result: m.SearchResult, ids: Mapping[str, str]) -> r.VectorResult:
    found = collection_rules.vector_result(result, ids)
    source_type = str(result.document.metadata.get("source_type") or "")
    return msgspec.structs.replace(
        found, metadata=msgspec.structs.replace(found.metadata, source_type=source_type)
    )


def as_it_is(metadata: dict[str, Any], *names: str) -> Any:
    return next((metadata[name] for name in names if metadata.get(name)), None)


whole_count = RateWindows.count


def counted_as_one(self: RateWindows, _operation: str, user: str | None, credential: str) -> None:
    """Count all operations in one window, with the smallest limit."""
    whole_count(self, "listCollections", user, credential)


def any_text(headers: Any, name: str, _max_chars: int) -> str | None:
    value: str | None = headers.get(name)
    return value


# --- the mutants ----------------------------------------------------------------------------------

_VECTOR: Breaks = {
    "the_answer_counts_what_matches_and_says_how_long_it_took": {
        "vector: the limit is ignored": body("vectorSearch", limit=100),
        "vector: the total is the page's": answers("vectorSearch", lambda a: {"total": len(a.results)}),
        "vector: the query is another": says("vectorSearch", query="x"),
        "vector: it took no time": says("vectorSearch", execution_time=0.0),
    },
    "the_limit_is_ten_where_none_is_sent": {
        "vector: another limit is the default": asked("vectorSearch", lambda i: {
            "body": msgspec.structs.replace(i.body, limit=11 if i.body.limit == 10 else i.body.limit)}),
    },
    "the_total_is_the_same_whatever_the_limit_is": {
        "vector: the total follows the limit":
            answers("vectorSearch", lambda a: {"total": max(a.total, len(a.results))}),
    },
    "scores_and_total_are_those_of_a_search_by_meaning": {
        "vector: scores are another search's": results(score=lambda result: result.score / 2),
        "vector: the worst come first": answers("vectorSearch", lambda a: {"results": a.results[::-1]}),
    },
    "without_a_collection_all_are_searched": {
        "vector: the best is missing": answers("vectorSearch", lambda a: {"results": a.results[1:]})},
    "a_search_in_a_collection_gives_its_passages_alone": {
        "vector: the name is ignored": body("vectorSearch", collection_name=None),
        "vector: the id is ignored": body("vectorSearch", collection_id=None),
        "vector: the collection is not told": metadata(collection_id=None),
    },
    "a_described_collection_is_searched_under_its_own_id": {
        "vector: the derived id is told": metadata(collection_id=r.collection_id("guides"))},
    "an_unknown_collection_is_not_found": {
        "vector: an unknown collection is empty":
            forgives("vectorSearch", "collection_not_found", nothing_found),
    },
    "an_empty_collection_answers_nothing": {
        "vector: an empty collection is all": body("vectorSearch", collection_name=None)},
    "a_name_and_another_ones_id_contradict_each_other": {
        "vector: the id wins over the name": forgives("vectorSearch", "contradiction", by_its_id_alone)},
    "source_type_and_tags_both_hold": {
        "vector: source_type is ignored": filters(operation_id="vectorSearch", source_type=None),
        "vector: tags are ignored": filters(operation_id="vectorSearch", tags=[]),
    },
    "of_several_tags_one_is_enough": {"vector: tags are all-of": around("vectorSearch", all_of_the_tags)},
    "what_names_no_source_type_is_manual": {
        "vector: absent is not manual": replaced(search, "vector_result", without_default_source_type)},
    "dates_are_those_of_the_last_change": {
        "vector: date_from is ignored": filters(operation_id="vectorSearch", date_from=None),
        "vector: date_to is ignored": filters(operation_id="vectorSearch", date_to=None),
        "vector: dates are those of creation": replaced(search, "DATE_FIELD", "created_at"),
    },
    "what_is_no_date_is_refused_by_name": {
        "vector: what is no date is taken": forgives("vectorSearch", "invalid_parameter", whatever_the_dates),
    },
    "an_end_before_the_start_is_a_contradiction": {
        "vector: an end before the start is taken":
            forgives("vectorSearch", "contradiction", whatever_the_dates),
    },
    "a_result_carries_text_source_score_and_metadata": {
        "vector: the collection's tag is a tag":
            metadata(tags=lambda told: [*told.tags, "collection:guides"]),
        "vector: who changed it is lost": metadata(last_modified_by=r.ENGINE_USER),
        "vector: when it changed is lost": metadata(last_modified_at=mis.EARLY),
        "vector: the heading is lost": metadata(heading=UNSET),
        "vector: the breadcrumbs are lost": metadata(context_breadcrumbs=UNSET),
        "vector: the source type is lost": metadata(source_type="manual"),
    },
    "what_is_not_known_of_a_document_is_absent_or_the_engines": {
        "vector: what is unknown is null": metadata(heading=lambda told: told.heading or None)},
    "a_source_is_told_by_what_is_known_of_it": {
        "vector: the source is always the path": results(source_url="c.md")},
    "a_source_without_a_name_is_its_documents_uid": {
        "vector: a source without a name has none": results(source_url="")},
    "metadata_of_any_type_breaks_no_answer": {
        "vector: metadata is taken as it is": replaced(collection_rules, "_text", as_it_is)},
    "what_has_not_been_taken_in_to_its_end_is_not_found": {
        "vector: drafts are counted": around("vectorSearch", with_drafts),
        "vector: drafts are listed": around("listCollections", with_the_collections_of_drafts),
    },
}  # fmt: skip

_COLLECTIONS: Breaks = {
    "every_collection_is_listed_by_name": {
        "collections: out of order":
            answers("listCollections", lambda a: {"collections": a.collections[::-1]}),
        "collections: empty ones are left out": answers("listCollections", lambda a: {
            "collections": [each for each in a.collections if each.chunk_count]}),
        "collections: undescribed ones are left out": answers("listCollections", lambda a: {
            "collections": [each for each in a.collections if each.description]}),
        "collections: the prefix alone is one": replaced(r, "names_in", lambda tags: [tag.removeprefix(
            r.PREFIX) for tag in tags if tag.startswith(r.PREFIX)]),
        "collections: chunks are not counted": summaries(chunk_count=0),
        "collections: another id": summaries(id=lambda _: str(uuid4())),
        "collections: another time of creation": summaries(created_at=mis.EARLY),
        "collections: another creator": summaries(created_by="nobody@example.com"),
    },
    "a_collection_is_read_with_its_statistics": {
        "a collection has no tokens": statistics(total_tokens=0),
        "a collection's mean is its sum": statistics(avg_chunk_size=lambda told: float(told.total_tokens)),
        "a collection was published once": statistics(last_published=mis.EARLY),
        "a collection never changed": answers("getCollection", lambda a: {"updated_at": a.created_at}),
    },
    "more_text_is_more_tokens": {"a collection has all tokens": statistics(total_tokens=tokens_of_all)},
    "an_unknown_collection_is_not_found": {
        "a collection is invented": forgives("getCollection", "collection_not_found", invented)},
    "a_collection_follows_its_documents": {
        "a collection's documents are not counted anew": summaries(chunk_count=1)},
    "a_described_collection_tells_what_was_said": {
        "a description is only said": around("putCollection", only_said),
        "a description gives another time of creation":
            answers("putCollection", lambda a: {"created_at": a.updated_at}),
        "a description forgets whom it is for": body("putCollection", target_audience=None),
        "a description forgets its words": body("putCollection", description=""),
    },
    "what_nobody_has_said_is_absent": {
        "what nobody said is an empty list":
            answers("getCollection", lambda a: {"usage_scenarios": a.usage_scenarios or []}),
    },
    "what_is_left_out_is_said_no_more": {
        "the creator is reset": replaced(collections, "_changed", creator_reset),
        "what is left out stays": replaced(collections, "_changed", mis.nothing),
    },
    "saying_the_same_again_changes_nothing": {
        "the same words are a change": replaced(collections, "_changed", changed_always)},
    "a_described_collection_stands_without_documents": {
        "a described one goes with its documents": around("getCollection", gone_when_empty),
        "descriptions go with the documents": query("clearDocuments", collections=True),
        "descriptions stay that are to go": query("clearDocuments", collections=False),
    },
    "a_collection_can_be_described_under_any_id_that_is_free": {
        "a described one has two ids": forgives("getCollection", "collection_not_found", invented)},
    "a_name_has_one_id_and_an_id_one_name": {
        "a name changes": replaced(collections, "check_description", mis.nothing),
        "a derived id is anybody's": replaced(r, "may_have_id", lambda *_: True),
    },
    "a_retried_description_answers_as_it_did": {
        "a retried description is done again": asked("putCollection", lambda _: {"idempotency_key": None})},
    "the_role_service_may_not_create_or_change": {
        "service may write": replaced(requests, "may_change", lambda _: True),
        "Service may write": replaced(requests, "may_change", lambda role: role != r.SERVICE),
        "nobody may write": replaced(requests, "may_change", lambda _: False),
    },
    "a_user_may_ask_so_often_a_minute": {
        "limits are not kept": replaced(RateWindows, "count", mis.nothing),
        "limits are everybody's": asked("getCollection", lambda _: {"user": None}),
        "limits are shared by operations": replaced(RateWindows, "count", counted_as_one),
        "429 says not how long to wait":
            replaced(mount, "problem_response", mis.problem_without("Retry-After")),
        **{f"{id_} has a limit of {limit + by}": partial(patch.dict, r.LIMITS, {id_: limit + by})
           for id_, limit in r.LIMITS.items() for by in (-1, 1)},
    },
    "the_role_service_may_search_list_and_get": {
        f"service may not {id_}": around(id_, refused_to_service) for id_ in r.LIMITS},
    "without_a_user_the_credential_counts": {
        "whoever is nobody is not counted":
            asked("listCollections", lambda i: {"user": i.user or str(uuid4())}),
    },
    "a_user_or_role_that_is_none_is_refused": {
        "any text is a user": replaced(requests, "caller_header", any_text)},
    "two_users_or_roles_are_none": {
        "the first of two users wins": replaced(requests, "caller_header", any_text)},
}  # fmt: skip


_CODES = {
    "collection_not_found": (COLLECTIONS, "an_unknown_collection_is_not_found"),
    "collection_exists": (COLLECTIONS, "a_name_has_one_id_and_an_id_one_name"),
    "forbidden": (COLLECTIONS, "the_role_service_may_not_create_or_change"),
    "rate_limited": (COLLECTIONS, "a_user_may_ask_so_often_a_minute"),
}
_SUCCESSES = {
    "vectorSearch": (VECTOR, "an_empty_collection_answers_nothing"),
    "listCollections": (COLLECTIONS, "every_collection_is_listed_by_name"),
    "getCollection": (COLLECTIONS, "more_text_is_more_tokens"),
    "putCollection": (COLLECTIONS, "a_name_that_people_read_is_a_name"),
}

RAGLER_MUTANTS: list[Mutant] = [
    *mutants_of(VECTOR, _VECTOR),
    *mutants_of(COLLECTIONS, _COLLECTIONS),
    *mutants_of(
        PROTOCOL,
        {
            "raglers_operations_are_served_whole_or_not_at_all": {
                f"{id_} is not served": around(id_, unknown)
                for id_ in ("listCollections", "getCollection")  # the others refuse the body first
            }
        },
    ),
    *(
        mutant(f"{code} has another status", module=module, test=test, broken=status_of_code(code))
        for code, (module, test) in _CODES.items()
    ),
    *(
        mutant(f"{id_} answers another success", module=module, test=test, broken=status_of_operation(id_))
        for id_, (module, test) in _SUCCESSES.items()
    ),
]
"""Every mutant, each with the test that should notice it."""
