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
    Mutant,
    answers,
    around,
    asked,
    body,
    filters,
    forgives,
    mutant,
    query,
    replaced,
    says,
    status_of_code,
    status_of_operation,
)

VECTOR, COLLECTIONS, PROTOCOL = "test_vector_search", "test_collections", "test_protocol"

_v, _c = partial(mutant, module=VECTOR), partial(mutant, module=COLLECTIONS)


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

_SEARCH = [
    _v("vector: the limit is ignored", test="the_answer_counts_what_matches_and_says_how_long_it_took",
       broken=body("vectorSearch", limit=100)),
    _v("vector: another limit is the default", test="the_limit_is_ten_where_none_is_sent",
       broken=asked("vectorSearch", lambda i: {"body": msgspec.structs.replace(
           i.body, limit=11 if i.body.limit == 10 else i.body.limit)})),
    _v("vector: the total is the page's", test="the_answer_counts_what_matches_and_says_how_long_it_took",
       broken=answers("vectorSearch", lambda a: {"total": len(a.results)})),
    _v("vector: the query is another", test="the_answer_counts_what_matches_and_says_how_long_it_took",
       broken=says("vectorSearch", query="x")),
    _v("vector: it took no time", test="the_answer_counts_what_matches_and_says_how_long_it_took",
       broken=says("vectorSearch", execution_time=0.0)),
    _v("vector: the total follows the limit", test="the_total_is_the_same_whatever_the_limit_is",
       broken=answers("vectorSearch", lambda a: {"total": max(a.total, len(a.results))})),
    _v("vector: scores are another search's", test="scores_and_total_are_those_of_a_search_by_meaning",
       broken=results(score=lambda result: result.score / 2)),
    _v("vector: the worst come first", test="scores_and_total_are_those_of_a_search_by_meaning",
       broken=answers("vectorSearch", lambda a: {"results": a.results[::-1]})),
    _v("vector: the best is missing", test="without_a_collection_all_are_searched",
       broken=answers("vectorSearch", lambda a: {"results": a.results[1:]})),
    _v("vector: the name is ignored", test="a_search_in_a_collection_gives_its_passages_alone",
       broken=body("vectorSearch", collection_name=None)),
    _v("vector: the id is ignored", test="a_search_in_a_collection_gives_its_passages_alone",
       broken=body("vectorSearch", collection_id=None)),
    _v("vector: the collection is not told", test="a_search_in_a_collection_gives_its_passages_alone",
       broken=metadata(collection_id=None)),
    _v("vector: the derived id is told", test="a_described_collection_is_searched_under_its_own_id",
       broken=metadata(collection_id=r.collection_id("guides"))),
    _v("vector: an unknown collection is empty", test="an_unknown_collection_is_not_found",
       broken=forgives("vectorSearch", "collection_not_found", nothing_found)),
    _v("vector: an empty collection is all", test="an_empty_collection_answers_nothing",
       broken=body("vectorSearch", collection_name=None)),
    _v("vector: the id wins over the name", test="a_name_and_another_ones_id_contradict_each_other",
       broken=forgives("vectorSearch", "contradiction", by_its_id_alone)),
    _v("vector: source_type is ignored", test="source_type_and_tags_both_hold",
       broken=filters(operation_id="vectorSearch", source_type=None)),
    _v("vector: tags are ignored", test="source_type_and_tags_both_hold",
       broken=filters(operation_id="vectorSearch", tags=[])),
    _v("vector: tags are all-of", test="of_several_tags_one_is_enough",
       broken=around("vectorSearch", all_of_the_tags)),
    _v("vector: absent is not manual", test="what_names_no_source_type_is_manual",
       broken=replaced(search, "vector_result", without_default_source_type)),
    _v("vector: date_from is ignored", test="dates_are_those_of_the_last_change",
       broken=filters(operation_id="vectorSearch", date_from=None)),
    _v("vector: date_to is ignored", test="dates_are_those_of_the_last_change",
       broken=filters(operation_id="vectorSearch", date_to=None)),
    _v("vector: dates are those of creation", test="dates_are_those_of_the_last_change",
       broken=replaced(search, "DATE_FIELD", "created_at")),
    _v("vector: what is no date is taken", test="what_is_no_date_is_refused_by_name",
       broken=forgives("vectorSearch", "invalid_parameter", whatever_the_dates)),
    _v("vector: an end before the start is taken", test="an_end_before_the_start_is_a_contradiction",
       broken=forgives("vectorSearch", "contradiction", whatever_the_dates)),
    _v("vector: the collection's tag is a tag", test="a_result_carries_text_source_score_and_metadata",
       broken=metadata(tags=lambda told: [*told.tags, "collection:guides"])),
    _v("vector: who changed it is lost", test="a_result_carries_text_source_score_and_metadata",
       broken=metadata(last_modified_by=r.ENGINE_USER)),
    _v("vector: when it changed is lost", test="a_result_carries_text_source_score_and_metadata",
       broken=metadata(last_modified_at=mis.EARLY)),
    _v("vector: the heading is lost", test="a_result_carries_text_source_score_and_metadata",
       broken=metadata(heading=UNSET)),
    _v("vector: the breadcrumbs are lost", test="a_result_carries_text_source_score_and_metadata",
       broken=metadata(context_breadcrumbs=UNSET)),
    _v("vector: the source type is lost", test="a_result_carries_text_source_score_and_metadata",
       broken=metadata(source_type="manual")),
    _v("vector: what is unknown is null", test="what_is_not_known_of_a_document_is_absent_or_the_engines",
       broken=metadata(heading=lambda told: told.heading or None)),
    _v("vector: the source is always the path", test="a_source_is_told_by_what_is_known_of_it",
       broken=results(source_url="c.md")),
    _v("vector: a source without a name has none", test="a_source_without_a_name_is_its_documents_uid",
       broken=results(source_url="")),
    _v("vector: metadata is taken as it is", test="metadata_of_any_type_breaks_no_answer",
       broken=replaced(collection_rules, "_text", as_it_is)),
    _v("vector: drafts are counted", test="what_has_not_been_taken_in_to_its_end_is_not_found",
       broken=around("vectorSearch", with_drafts)),
    _v("vector: drafts are listed", test="what_has_not_been_taken_in_to_its_end_is_not_found",
       broken=around("listCollections", with_the_collections_of_drafts)),
]  # fmt: skip

_COLLECTIONS = [
    _c("collections: out of order", test="every_collection_is_listed_by_name",
       broken=answers("listCollections", lambda a: {"collections": a.collections[::-1]})),
    _c("collections: empty ones are left out", test="every_collection_is_listed_by_name",
       broken=answers("listCollections", lambda a: {
           "collections": [each for each in a.collections if each.chunk_count]})),
    _c("collections: undescribed ones are left out", test="every_collection_is_listed_by_name",
       broken=answers("listCollections", lambda a: {
           "collections": [each for each in a.collections if each.description]})),
    _c("collections: the prefix alone is one", test="every_collection_is_listed_by_name",
       broken=replaced(r, "names_in", lambda tags: [
           tag.removeprefix(r.PREFIX) for tag in tags if tag.startswith(r.PREFIX)])),
    _c("collections: chunks are not counted", test="every_collection_is_listed_by_name",
       broken=summaries(chunk_count=0)),
    _c("collections: another id", test="every_collection_is_listed_by_name",
       broken=summaries(id=lambda _: str(uuid4()))),
    _c("collections: another time of creation", test="every_collection_is_listed_by_name",
       broken=summaries(created_at=mis.EARLY)),
    _c("collections: another creator", test="every_collection_is_listed_by_name",
       broken=summaries(created_by="nobody@example.com")),
    _c("a collection has no tokens", test="a_collection_is_read_with_its_statistics",
       broken=statistics(total_tokens=0)),
    _c("a collection's mean is its sum", test="a_collection_is_read_with_its_statistics",
       broken=statistics(avg_chunk_size=lambda told: float(told.total_tokens))),
    _c("a collection was published once", test="a_collection_is_read_with_its_statistics",
       broken=statistics(last_published=mis.EARLY)),
    _c("a collection never changed", test="a_collection_is_read_with_its_statistics",
       broken=answers("getCollection", lambda a: {"updated_at": a.created_at})),
    _c("a collection has all tokens", test="more_text_is_more_tokens",
       broken=statistics(total_tokens=tokens_of_all)),
    _c("a collection is invented", test="an_unknown_collection_is_not_found",
       broken=forgives("getCollection", "collection_not_found", invented)),
    _c("a collection's documents are not counted anew", test="a_collection_follows_its_documents",
       broken=summaries(chunk_count=1)),
    _c("a description is only said", test="a_described_collection_tells_what_was_said",
       broken=around("putCollection", only_said)),
    _c("a description gives another time of creation",
       test="a_described_collection_tells_what_was_said",
       broken=answers("putCollection", lambda a: {"created_at": a.updated_at})),
    _c("a description forgets whom it is for", test="a_described_collection_tells_what_was_said",
       broken=body("putCollection", target_audience=None)),
    _c("a description forgets its words", test="a_described_collection_tells_what_was_said",
       broken=body("putCollection", description="")),
    _c("what nobody said is an empty list", test="what_nobody_has_said_is_absent",
       broken=answers("getCollection", lambda a: {"usage_scenarios": a.usage_scenarios or []})),
    _c("the creator is reset", test="what_is_left_out_is_said_no_more",
       broken=replaced(collections, "_changed", creator_reset)),
    _c("what is left out stays", test="what_is_left_out_is_said_no_more",
       broken=replaced(collections, "_changed", mis.nothing)),
    _c("the same words are a change", test="saying_the_same_again_changes_nothing",
       broken=replaced(collections, "_changed", changed_always)),
    _c("a described one goes with its documents",
       test="a_described_collection_stands_without_documents",
       broken=around("getCollection", gone_when_empty)),
    _c("descriptions go with the documents", test="a_described_collection_stands_without_documents",
       broken=query("clearDocuments", collections=True)),
    _c("descriptions stay that are to go", test="a_described_collection_stands_without_documents",
       broken=query("clearDocuments", collections=False)),
    _c("a described one has two ids", test="a_collection_can_be_described_under_any_id_that_is_free",
       broken=forgives("getCollection", "collection_not_found", invented)),
    _c("a name changes", test="a_name_has_one_id_and_an_id_one_name",
       broken=replaced(collections, "check_description", mis.nothing)),
    _c("a derived id is anybody's", test="a_name_has_one_id_and_an_id_one_name",
       broken=replaced(r, "may_have_id", lambda *_: True)),
    _c("a retried description is done again", test="a_retried_description_answers_as_it_did",
       broken=asked("putCollection", lambda _: {"idempotency_key": None})),
    _c("service may write", test="the_role_service_may_not_create_or_change",
       broken=replaced(requests, "may_change", lambda _: True)),
    _c("Service may write", test="the_role_service_may_not_create_or_change",
       broken=replaced(requests, "may_change", lambda role: role != r.SERVICE)),
    _c("nobody may write", test="the_role_service_may_not_create_or_change",
       broken=replaced(requests, "may_change", lambda _: False)),
    *(
        _c(f"service may not {id_}", test="the_role_service_may_search_list_and_get",
           broken=around(id_, refused_to_service))
        for id_ in r.LIMITS
    ),
]  # fmt: skip

_LIMITS = [
    _c("limits are not kept", test="a_user_may_ask_so_often_a_minute",
       broken=replaced(RateWindows, "count", mis.nothing)),
    *(
        _c(f"{id_} has a limit of {limit + by}", test="a_user_may_ask_so_often_a_minute",
           broken=partial(patch.dict, r.LIMITS, {id_: limit + by}))
        for id_, limit in r.LIMITS.items()
        for by in (-1, 1)
    ),
    _c("limits are everybody's", test="a_user_may_ask_so_often_a_minute",
       broken=asked("getCollection", lambda _: {"user": None})),
    _c("limits are shared by operations", test="a_user_may_ask_so_often_a_minute",
       broken=replaced(RateWindows, "count", counted_as_one)),
    _c("429 says not how long to wait", test="a_user_may_ask_so_often_a_minute",
       broken=replaced(mount, "problem_response", mis.problem_without("Retry-After"))),
    _c("whoever is nobody is not counted", test="without_a_user_the_credential_counts",
       broken=asked("listCollections", lambda i: {"user": i.user or str(uuid4())})),
    _c("any text is a user", test="a_user_or_role_that_is_none_is_refused",
       broken=replaced(requests, "caller_header", any_text)),
    _c("the first of two users wins", test="two_users_or_roles_are_none",
       broken=replaced(requests, "caller_header", any_text)),
]  # fmt: skip

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
    *_SEARCH,
    *_COLLECTIONS,
    *_LIMITS,
    *(
        mutant(
            f"{id_} is not served",
            module=PROTOCOL,
            test="raglers_operations_are_served_whole_or_not_at_all",
            broken=around(id_, unknown),
        )
        for id_ in _SUCCESSES
        if id_ not in {"vectorSearch", "putCollection"}  # they refuse the body before the handler
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
