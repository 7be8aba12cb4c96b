"""Promises on RAGler's search: passages by meaning, over all collections or in one, filtered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kb_contracts.api import operations as ops
from kb_contracts.api.ragler import ENGINE_USER, collection_id
from kb_verify.client import Client, long_note, problem, skip_as_too_fast

pytestmark = pytest.mark.usefixtures("ragler")

UUID = "00000000-0000-4000-8000-000000000000"
QUERY = "authentication of requests by a bearer key"


def response_to(kb: Client, **body: Any) -> Any:
    return kb.request(ops.VECTOR_SEARCH, json={"query": QUERY, **body})


def contents(kb: Client, **body: Any) -> list[str]:
    return [result.content for result in kb.vector(QUERY, **body).results]


@pytest.mark.requirement("R70", "R72", "R24")
def test_without_a_collection_all_are_searched(kb: Client) -> None:
    """By meaning: six notes in three places give five results, the note with the query's words first."""
    for number in range(5):
        kb.note(f"granite quarry report {number}", tags=[f"collection:c{number % 2}"])
    kb.note(QUERY)
    answer = kb.vector(QUERY, limit=5)
    assert len(answer.results) == 5
    assert answer.results[0].content == QUERY
    assert answer.results[0].score > 0.5


@pytest.mark.requirement("R12")
def test_the_answer_counts_what_matches_and_says_how_long_it_took(kb: Client) -> None:
    """The limit bounds the results but not the total; the query is returned as it was sent."""
    for number in range(3):
        kb.note(f"{QUERY} {number}")
    answer = kb.vector(QUERY, limit=2)
    assert (len(answer.results), answer.total, answer.query) == (2, 3, QUERY)
    assert 0 < answer.execution_time < 60_000


@pytest.mark.requirement("R12")
def test_the_total_is_the_same_whatever_the_limit_is(kb: Client) -> None:
    """One note matches; nine are only the nearest remaining ones, and the limit admits them."""
    kb.note(QUERY)
    for number in range(9):
        kb.note(f"granite quarry report {number}")
    one, *more = [kb.vector(QUERY, limit=limit).total for limit in (1, 6, 100)]
    assert one >= 1
    assert more == [one, one]


@pytest.mark.requirement("R12", "R24")
def test_scores_and_total_are_those_of_a_search_by_meaning(kb: Client) -> None:
    """Those of mode `vector` of the engine's own search: the cosine, at least 0, best first."""
    for text in (QUERY, "requests need a key", "granite quarry", "harbour lantern"):
        kb.note(text, tags=["collection:c"])
    for limit in (2, 100):
        own = kb.search(QUERY, mode="vector", top=limit)
        answer = kb.vector(QUERY, limit=limit)
        assert [each.score for each in answer.results] == [each.score for each in own.results]
        assert [each.content for each in answer.results] == [each.chunk.text for each in own.results]
        assert answer.total == own.total


@pytest.mark.requirement("R27")
def test_final_scores_are_those_of_the_engines_own_search(kb: Client) -> None:
    for number, source_type in enumerate(("manual", "web", "confluence")):
        kb.note(f"{QUERY} {number}", metadata={"source_type": source_type})
    ranking = {"ranking_weights": {"semantic": 0.2, "reputation": 0.8}}
    own = kb.search(QUERY, mode="vector", ranking=ranking)
    answer = kb.vector(QUERY, ranking=ranking)
    assert [each.score for each in answer.results] == [each.score for each in own.results]
    assert [each.content for each in answer.results] == [each.chunk.text for each in own.results]
    assert answer.results[0].metadata.source_type == "confluence"


@pytest.mark.requirement("R11")
def test_the_limit_is_ten_where_none_is_sent(kb: Client) -> None:
    for number in range(12):
        kb.note(f"{QUERY} {number}")
    assert len(kb.vector(QUERY).results) == 10
    assert len(kb.vector(QUERY, limit=100).results) == 12


@pytest.mark.requirement("R13", "R14", "R15")
def test_a_result_carries_text_source_score_and_metadata(kb: Client) -> None:
    """The metadata are those that RAGler's clients read; the collection's tag is not among the tags."""
    metadata = {
        "source_type": "confluence",
        "source_url": "https://wiki.example/auth",
        "last_modified_by": "ann@example.com",
        "context_breadcrumbs": "Guides > Security",
    }
    text = f"# Keys\n\n{QUERY}"
    document = kb.stored_note(text, tags=["api", "collection:guides"], metadata=metadata)
    (result,) = kb.vector(QUERY).results
    metadata_found = result.metadata
    assert (result.content, result.source_url) == (document.chunks[0].text, "https://wiki.example/auth")
    assert 0 <= result.score <= 1
    assert (metadata_found.source_type, metadata_found.context_breadcrumbs) == (
        "confluence",
        "Guides > Security",
    )
    assert (metadata_found.heading, metadata_found.tags) == (document.chunks[0].heading, ["api"])
    assert metadata_found.heading == "Keys"
    assert (metadata_found.last_modified_by, metadata_found.last_modified_at) == (
        "ann@example.com",
        document.updated_at,
    )
    assert metadata_found.collection_id == collection_id("guides")


@pytest.mark.requirement("R14", "R15")
def test_what_is_not_known_of_a_document_is_absent_or_the_engines(kb: Client) -> None:
    kb.note(QUERY)
    response = response_to(kb)
    (metadata,) = [result["metadata"] for result in response.json()["results"]]
    assert metadata.keys() == {"collection_id", "source_type", "tags", "last_modified_by", "last_modified_at"}
    assert (metadata["collection_id"], metadata["source_type"], metadata["tags"]) == (None, "manual", [])
    assert metadata["last_modified_by"] == ENGINE_USER


@pytest.mark.requirement("R13")
@pytest.mark.parametrize(
    ("metadata", "source_path", "expected"),
    [
        ({"source_url": "https://a.example/", "url": "https://b.example/"}, "c.md", "https://a.example/"),
        ({"url": "https://b.example/"}, "c.md", "https://b.example/"),
        ({"source_url": " ", "url": 7}, "c.md", "c.md"),
        ({}, "c.md", "c.md"),
        ({}, None, "d.txt"),
    ],
)
def test_a_source_is_told_by_what_is_known_of_it(
    kb: Client, metadata: dict[str, Any], source_path: str | None, expected: str
) -> None:
    """A URL in its metadata, otherwise its source path, otherwise its filename."""
    fields = {"metadata": json.dumps(metadata), **({"source_path": source_path} if source_path else {})}
    kb.file("d.txt", QUERY.encode(), **fields)
    (result,) = kb.vector(QUERY).results
    assert result.source_url == expected


@pytest.mark.requirement("R13")
def test_a_source_without_a_name_is_its_documents_uid(kb: Client) -> None:
    """The uid is a URN, so that every source is a URI."""
    document = kb.stored_note(QUERY)
    assert kb.vector(QUERY).results[0].source_url == f"urn:uuid:{document.uid}"


@pytest.mark.parametrize("value", [None, 7, True, [], ["web"], {"a": 1}, ""])
def test_metadata_of_any_type_breaks_no_answer(kb: Client, value: Any) -> None:
    """A value that is not a text counts as absent."""
    names = ("source_type", "source_url", "url", "last_modified_by", "context_breadcrumbs", "tags", "heading")
    kb.note(QUERY, source_path="a.md", metadata=dict.fromkeys(names, value))
    (result,) = kb.vector(QUERY).results
    assert (result.source_url, result.metadata.last_modified_by) == ("a.md", ENGINE_USER)
    assert result.metadata.source_type == ("" if value == "" else "manual")


@pytest.mark.requirement("R73", "R25", "R11")
def test_a_search_in_a_collection_gives_its_passages_alone(kb: Client) -> None:
    """By its name, by its id, or by both; their `collection_id` is the collection's."""
    kb.note(QUERY, tags=["collection:other"])
    kb.note(f"{QUERY} here", tags=["collection:API Documentation", "collection:other"])
    kb.note(f"{QUERY} nowhere")
    id_ = collection_id("API Documentation")
    for chosen in (
        {"collectionName": "API Documentation"},
        {"collectionId": id_},
        {"collectionName": "API Documentation", "collectionId": id_},
    ):
        answer = kb.vector(QUERY, **chosen)
        assert [result.content for result in answer.results] == [f"{QUERY} here"]
        assert [result.metadata.collection_id for result in answer.results] == [id_]
        assert answer.total == 1


@pytest.mark.requirement("R73", "R15")
def test_a_described_collection_is_searched_under_its_own_id(kb: Client) -> None:
    """Every result has that id, also in a search over all collections."""
    id_ = kb.saved_collection(UUID, "guides").id
    kb.note(QUERY, tags=["collection:guides"])
    kb.note("granite", tags=["collection:stones"])
    assert [result.metadata.collection_id for result in kb.vector(QUERY, collectionId=id_).results] == [UUID]
    ids = [result.metadata.collection_id for result in kb.vector(QUERY).results]
    assert ids == [UUID, collection_id("stones")]


def test_an_empty_collection_answers_nothing(kb: Client) -> None:
    kb.saved_collection(UUID, "guides")
    kb.note(QUERY)
    answer = kb.vector(QUERY, collectionName="guides")
    assert (answer.results, answer.total) == ([], 0)


@pytest.mark.parametrize("chosen", [{"collectionName": "nothing"}, {"collectionId": UUID}])
def test_an_unknown_collection_is_not_found(kb: Client, chosen: dict[str, str]) -> None:
    """Instead of an empty response that looks as if the collection were empty."""
    kb.note(QUERY, tags=["collection:guides"])
    problem(response_to(kb, **chosen), "collection_not_found")


def test_a_name_and_another_ones_id_contradict_each_other(kb: Client) -> None:
    kb.note(QUERY, tags=["collection:guides", "collection:stones"])
    response = response_to(kb, collectionName="stones", collectionId=collection_id("guides"))
    assert problem(response, "contradiction").parameter == "collectionName"


@pytest.mark.requirement("R74", "R25")
def test_source_type_and_tags_both_hold(kb: Client) -> None:
    kb.note(f"{QUERY} 1", tags=["api"], metadata={"source_type": "confluence"})
    kb.note(f"{QUERY} 2", tags=["api"], metadata={"source_type": "web"})
    kb.note(f"{QUERY} 3", tags=["ops"], metadata={"source_type": "confluence"})
    answer = kb.vector(QUERY, filters={"source_type": "confluence", "tags": ["api"]})
    assert [result.content for result in answer.results] == [f"{QUERY} 1"]
    assert (answer.results[0].metadata.source_type, answer.results[0].metadata.tags) == (
        "confluence",
        ["api"],
    )
    assert answer.total == 1


@pytest.mark.requirement("R25")
def test_what_names_no_source_type_is_manual(kb: Client) -> None:
    """In the filter and in the response; also if the metadata have a source type that is not a text."""
    kb.note(f"{QUERY} 1")
    kb.note(f"{QUERY} 2", metadata={"source_type": ["web"]})
    kb.note(f"{QUERY} 3", metadata={"source_type": "manual"})
    kb.note(f"{QUERY} 4", metadata={"source_type": "web"})
    for source_type, expected in (("manual", "123"), ("web", "4"), ("confluence", "")):
        answer = kb.vector(QUERY, filters={"source_type": source_type})
        assert sorted(result.content[-1] for result in answer.results) == list(expected)
        assert {result.metadata.source_type for result in answer.results} <= {source_type}
        assert answer.total == len(expected)


def test_of_several_tags_one_is_enough(kb: Client) -> None:
    """Unlike the tags of the engine's own search."""
    kb.note(f"{QUERY} 1", tags=["a"])
    kb.note(f"{QUERY} 2", tags=["b"])
    kb.note(f"{QUERY} 3", tags=["c"])
    assert sorted(contents(kb, filters={"tags": ["a", "b"]})) == [f"{QUERY} 1", f"{QUERY} 2"]


@pytest.mark.requirement("R25")
def test_dates_are_those_of_the_last_change(kb: Client) -> None:
    """Both limits are included: a time to its last digit, a date as upper limit with its whole day."""
    created = kb.stored_note("granite")
    changed = kb.patched(created.id, text=QUERY).updated_at
    day = changed[:10]
    for filters, found in (
        ({"date_from": day, "date_to": day}, True),
        ({"date_from": changed, "date_to": changed}, True),
        ({"date_to": created.created_at}, False),
        ({"date_from": "2999-01-01"}, False),
        ({"date_to": "2000-01-01"}, False),
    ):
        assert contents(kb, filters=filters) == ([QUERY] if found else [])


@pytest.mark.parametrize("text", ["yesterday", "2025-02-30", "2025-01-01T10:00:00", ""])
@pytest.mark.parametrize("member", ["date_from", "date_to"])
def test_what_is_no_date_is_refused_by_name(kb: Client, member: str, text: str) -> None:
    assert (
        problem(response_to(kb, filters={member: text}), "invalid_parameter").parameter == f"filters.{member}"
    )


def test_an_end_before_the_start_is_a_contradiction(kb: Client) -> None:
    problem(response_to(kb, filters={"date_from": "2025-02-01", "date_to": "2025-01-31"}), "contradiction")


@pytest.mark.requirement("R46")
def test_what_has_not_been_taken_in_to_its_end_is_not_found(kb: Client) -> None:
    """Neither its passages nor its collection are visible before the job has completed."""
    failed = kb.ended(kb.send("a.pdf", b"no PDF", tags='["collection:drafts"]'))
    assert failed.status == "failed"
    job = kb.submit(long_note(1), tags=["collection:drafts"])
    answer, listed = kb.vector("long1x1 long1x2"), kb.collections()
    if kb.call(ops.GET_JOB, job.id).status == "completed":
        skip_as_too_fast("a long note was taken in before it could be looked for")
    assert (answer.results, answer.total) == ([], 0)
    assert "drafts" not in listed
    kb.request(ops.CANCEL_JOB, job.id)


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"query": ""}, "query"),
        ({"query": " \n\u3000"}, "query"),
        ({"query": "x" * 4_001}, "query"),
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"limit": "5"}, "limit"),
        ({"collectionName": ""}, "collectionName"),
        ({"collectionName": "a,b"}, "collectionName"),
        ({"collectionId": "guides"}, "collectionId"),
        ({"filters": {"source_type": "mail"}}, "filters.source_type"),
        ({"filters": {"tags": [""]}}, "filters.tags[0]"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(kb: Client, body: dict[str, Any], parameter: str) -> None:
    assert problem(response_to(kb, **body), "invalid_parameter").parameter == parameter


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"collection_name": "a"}, "collection_name"),
        ({"filters": {"sourceType": "web"}}, "filters.sourceType"),
    ],
)
def test_an_unknown_member_is_refused_by_name(kb: Client, body: dict[str, Any], parameter: str) -> None:
    """Names in another spelling are other names."""
    assert problem(response_to(kb, **body), "unknown_parameter").parameter == parameter


def test_a_missing_query_is_told(kb: Client) -> None:
    kb.refused("missing_parameter", ops.VECTOR_SEARCH, json={"limit": 5}, parameter="query")


def test_marks_are_text_to_it(kb: Client) -> None:
    """This search has no phrases and no exclusions: the query is compared as it is written."""
    kb.note(QUERY)
    assert len(kb.vector(f'"{QUERY} granite" -bearer').results) == 1
