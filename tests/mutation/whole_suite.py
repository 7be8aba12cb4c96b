"""A mutant for each test of the suite that `mutants.py` does not cover, and a list of the exempt tests.

A refusal or a success has another status, or a response another member: the least change that the test must
notice.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import msgspec

from tests.mutation.breaking import (
    Break,
    Mutant,
    another_code,
    answers,
    asked,
    body,
    mutant,
    query,
    results,
    says,
    status_of_code,
    status_of_operation,
)

UNNAMED: dict[str, str] = {
    **dict.fromkeys(
        [
            "test_generated::test_random_values_are_answered",
            "test_generated::test_random_walks_along_the_links_are_answered",
            "test_generated::test_the_examples_of_the_document_are_answered",
            "test_generated::test_values_at_and_beyond_every_edge_are_answered",
        ],
        "it is there for breaches that no other test foresees",
    ),
    **dict.fromkeys(
        ["test_walked::test_every_link_leads_on", "test_walked::test_every_operation_has_succeeded"],
        "it counts what the other tests have requested, and passes only after all of them",
    ),
}
"""Tests of the suite without a mutant, as `module::name`, each with the reason."""

_INVALID = status_of_code("invalid_parameter")
_UNKNOWN = status_of_code("unknown_parameter")
_REQUEST = status_of_code("invalid_request")


def _new_scope(incoming: Any) -> dict[str, Any]:
    return {"body": msgspec.structs.replace(incoming.body, dedup_scope=str(uuid4()))}


_BREAKS: dict[str, dict[str, Break]] = {
    "collections": {
        "a_description_that_does_not_fit_is_refused_by_name": _INVALID,
        "a_refused_call_is_not_counted": _UNKNOWN,
        "what_is_no_id_is_refused_by_name": _INVALID,
    },
    "context": {
        "a_number_out_of_range_is_refused": _INVALID,
        "a_quote_of_a_file_is_there": says("checkCitation", status="changed"),
        "neighbors_that_are_wanted_come_around_merged_results": results(
            lambda _: {"before": [], "after": []}
        ),
        "what_is_no_citation_is_refused_by_name": _INVALID,
        "what_is_no_quote_is_found_nowhere": says("checkCitation", status="there"),
    },
    "documents": {
        "a_list_refuses_what_does_not_fit": _INVALID,
        "documents_are_sorted_by_filename": query("listDocuments", sort_by="created_at"),
        "of_moves_at_once_with_if_match_one_wins": asked("addTags", lambda _: {"if_match": None}),
        "of_patches_at_once_with_a_version_one_wins": body("patchNote", expected_version=None),
        "what_is_no_document_key_is_refused": _INVALID,
    },
    "idempotency": {
        "a_refused_request_spends_no_key": _INVALID,
        "a_retried_file_is_the_same_job": asked("createJob", lambda _: {"idempotency_key": None}),
        "forced_ocr_is_another_request": another_code("idempotency_mismatch"),
        "of_retries_at_once_one_job_comes": asked("createJob", lambda _: {"idempotency_key": None}),
    },
    "jobs": {
        "a_cancelled_job_cannot_be_cancelled_again": status_of_code("job_finished"),
        "a_note_and_a_file_of_the_same_text_are_two": status_of_operation("listDocuments"),
        "a_note_over_the_limit_is_refused": _INVALID,
        "a_text_comes_back_after_its_document_was_removed": says("getJob", deduplicated=True),
        "a_text_submitted_many_times_at_once_is_one_document": asked("createJob", _new_scope),
        "the_engine_has_no_parameter_for_collections": _UNKNOWN,
        "waiting_in_vain_answers_the_job_as_it_is": status_of_operation("getJob"),
        "what_is_no_job_id_is_refused": _INVALID,
    },
    "pages": {"what_is_no_cursor_is_refused": _INVALID},
    "protocol": {
        "a_body_that_is_no_object_is_refused": _REQUEST,
        "a_body_that_is_not_json_is_refused": _REQUEST,
        "odd_json_is_taken_in_or_refused": _REQUEST,
        "the_right_key_is_served": status_of_operation("getStatus"),
    },
    "query": {"a_hostile_query_is_answered": status_of_operation("search")},
    "ranking": {
        "feedback_stays_when_a_note_is_changed": status_of_operation("giveFeedback"),
        "filters_come_before_scores": status_of_operation("search"),
        "the_semantic_part_is_the_cosine_of_a_search_by_meaning": body("search", mode="fts"),
        "who_names_no_user_is_the_voice_of_its_key": status_of_operation("giveFeedback"),
    },
    "search": {
        "a_score_means_the_same_in_a_base_of_one_and_of_forty": answers(
            "search",
            lambda a: {
                "results": [
                    msgspec.structs.replace(each, score=each.score / len(a.results)) for each in a.results
                ]
            },
        ),
        "a_value_out_of_range_is_refused_by_name": _INVALID,
        "hybrid_is_the_mode_where_none_is_asked": body("search", mode="fts"),
        "no_query_is_taken_for_a_language": status_of_operation("search"),
    },
    "sources": {
        "a_job_that_was_cancelled_has_no_outcome": status_of_operation("cancelJob"),
        "a_note_becomes_a_file_under_its_source_path": status_of_code("not_a_note"),
        "of_a_source_that_met_another_by_a_move_one_document_stays": status_of_operation("removeTag"),
        "of_submissions_of_a_source_the_last_accepted_stays": status_of_operation("getDocument"),
        "the_longest_source_path_can_be_listed_and_taken_off": status_of_operation("removeSource"),
    },
    "updates": {
        "a_retry_that_waits_has_the_answer": status_of_operation("patchNote"),
        "a_wait_that_is_none_is_refused": _INVALID,
        "another_update_under_its_key_is_a_mismatch": another_code("idempotency_mismatch"),
        "clearing_cancels_updates": says("getJob", status="completed"),
        "updates_are_done_in_the_order_of_acceptance": says("search", results=[]),
        "updates_at_once_without_a_version_are_all_done": status_of_operation("patchNote"),
        "what_cannot_be_updated_is_refused_at_once": status_of_code("document_not_found"),
    },
    "uploads": {
        "forced_ocr_is_done_or_fails_for_want_of_it": says("getJob", status="cancelled"),
        "many_files_at_once_are_all_taken_in": says("search", results=[]),
        "ocr_is_not_forced_on_what_has_no_pages_to_look_at": _INVALID,
        "ocr_that_is_not_forced_leaves_the_text": says("getJob", status="failed"),
    },
    "vector_search": {
        "a_missing_query_is_told": status_of_code("missing_parameter"),
        "a_value_out_of_range_is_refused_by_name": _INVALID,
        "an_unknown_member_is_refused_by_name": _UNKNOWN,
        "final_scores_are_those_of_the_engines_own_search": status_of_operation("vectorSearch"),
    },
}

WHOLE_SUITE_MUTANTS: tuple[Mutant, ...] = tuple(
    mutant(f"{module}: not {test.replace('_', ' ')}", module=f"test_{module}", test=test, broken=broken)
    for module, tests in _BREAKS.items()
    for test, broken in tests.items()
)
