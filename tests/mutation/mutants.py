"""The mutants, one promise each."""

from __future__ import annotations

import re
from uuid import uuid4

import msgspec
from msgspec import UNSET

from kb_contracts.api import formats
from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics import cursors, diversity, feedback, ranking
from kb_contracts.semantics import documents as semantic_documents
from kb_contracts.semantics import query as semantic_query
from kb_contracts.semantics import search as semantic_search
from kb_contracts.semantics import sources as semantic_sources
from kb_http import downloads, mount, multipart, requests
from kb_readers import readers
from kb_simulator.engine import (
    arrivals,
    commits,
    documents,
    handlers,
    search,
    sources,
    state,
    submissions,
    versions,
)
from kb_simulator.engine import jobs as simulated_jobs
from kb_simulator.engine.jobs import Answers
from kb_simulator.harness import app
from tests.mutation import misbehaving as mis
from tests.mutation.access_mutants import ACCESS_MUTANTS
from tests.mutation.breaking import (
    Breaks,
    Mutant,
    another_code,
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
    results,
    says,
    status_of_code,
    status_of_operation,
)
from tests.mutation.ragler_mutants import RAGLER_MUTANTS
from tests.mutation.whole_suite import WHOLE_SUITE_MUTANTS

JOBS, DOCUMENTS, SEARCH, QUERY = "test_jobs", "test_documents", "test_search", "test_query"
UPDATES, RANKING, CONTEXT = "test_updates", "test_ranking", "test_context"
SOURCES, PAGES, VERSIONS = "test_sources", "test_pages", "test_versions"
ORIGINALS = "test_originals"
IDEMPOTENCY, PROTOCOL, UPLOADS, STATE = "test_idempotency", "test_protocol", "test_uploads", "test_state"


_JOBS: Breaks = {
    "the_same_text_in_another_scope_is_another_document": {
        "dedup ignores the scope": body("createJob", dedup_scope="")},
    "the_same_text_twice_in_a_scope_is_one_document": {
        "nothing is a duplicate":
            asked("createJob", lambda i: {"body": msgspec.structs.replace(i.body, dedup_scope=str(uuid4()))}),
        "a duplicate's tags are lost": replaced(commits, "_united", mis.united_in_nothing),
        "a duplicate is not told": says("getJob", deduplicated=False),
    },
    "trailing_white_space_makes_no_other_note": {
        "trailing white space makes another note": replaced(submissions, "note_hash", mis.hash_of_all)},
    "an_updated_note_is_known_without_its_trailing_white_space": {
        "trailing white space tells an updated note apart": replaced(commits, "note_hash", mis.hash_of_all)},
    "a_note_keeps_what_came_with_it": {
        "metadata is lost": body("createJob", metadata={}),
        "the title is lost": body("createJob", title="x"),
        "the source path is lost": body("createJob", source_path=None),
        "the tags are lost": body("createJob", tags=[]),
    },
    "a_note_is_accepted_as_a_job": {
        "a job is accepted as running": says("createJob", status="running"),
        "answers are text": replaced(
            mount, "_adapt", mis.adapted(lambda response: setattr(response, "content_type", "text/plain"))),
    },
    "a_note_of_white_space_is_refused": {
        "white space is a note": replaced(semantic_documents, "check_note_text", mis.nothing)},
    "a_note_that_does_not_fit_is_refused_by_name": {
        "metadata has no bound": replaced(semantic_documents, "check_metadata", mis.nothing),
        "an unknown member is passed over":
            replaced(requests, "decode_body", mis.unknown_members_passed_over),
        "a problem names no parameter":
            replaced(mount, "problem_response", mis.problem_without_member("parameter")),
    },
    "a_completed_job_names_its_document": {
        "a completed job names no uid": says("getJob", document_uid=None),
        "a completed job is half done": says("getJob", progress=0.5),
    },
    "a_job_tells_its_times_in_order": {"a job ends before it starts": says("getJob", finished_at=mis.EARLY)},
    "waiting_answers_when_the_job_ends": {"waiting does not wait": query("getJob", wait=0.0)},
    "a_job_that_has_ended_cannot_be_cancelled": {
        "a finished job is cancelled": forgives("cancelJob", "job_finished", mis.job_as_it_is)},
    "a_cancelled_job_leaves_nothing": {
        "a cancel is only said": around("cancelJob", mis.only_said_to_be_cancelled)},
    "only_a_failed_job_can_be_tried_again": {
        "a completed job is tried again": forgives("retryJob", "job_not_retryable", mis.job_as_it_is)},
    "a_failed_job_can_be_tried_again": {
        "a retry is only said": says("retryJob", status="failed"),
        "a failed job keeps nothing": says("getJob", retryable=False),
    },
    "a_job_tells_how_long_it_took_by_its_own_times": {
        "the clock of a job runs on": says("getJob", elapsed_seconds=1e6)},
    "jobs_are_filtered_by_status": {"jobs: the status is ignored": query("listJobs", status=None)},
    "jobs_are_listed_newest_first_page_by_page": {
        "jobs: the offset is ignored": query("listJobs", offset=0),
        "jobs: the limit is ignored": query("listJobs", limit=1000),
        "jobs: the total is the page's": answers("listJobs", lambda a: {"total": len(a.jobs)}),
        "jobs: the oldest come first": answers("listJobs", lambda a: {"jobs": a.jobs[::-1]}),
    },
    "an_unknown_job_is_not_found": {
        "problems are plain JSON": replaced(mount, "problem_response", mis.plain_problem),
        "a code goes by another name": another_code("job_not_found"),
    },
}  # fmt: skip

_SOURCES: Breaks = {
    "a_source_sent_again_is_replaced": {
        "a source gathers documents": replaced(commits, "holders_of", mis.none)},
    "a_source_sent_again_as_it_was_is_unchanged": {
        "the same source is told as replaced": says("getJob", outcome="replaced")},
    "the_same_path_in_another_collection_is_another_source": {
        "a path is one in all collections": replaced(sources, "source_scope", mis.one_scope)},
    "two_sources_of_the_same_text_share_a_document": {
        "a shared document is changed": replaced(commits, "plan", mis.plan_that_takes_shared_documents)},
    "a_document_goes_with_its_last_source": {
        "a document outlives its last source": replaced(commits, "plan", mis.plan_that_removes_nothing)},
    "without_a_source_path_nothing_is_replaced": {
        "what has no source goes with one": replaced(commits, "plan", mis.plan_that_forgets_the_unsourced)},
    "a_source_takes_over_a_note_that_has_none": {
        "a note without a source stays beside its source": replaced(commits, "takes_over", lambda *_: False)},
    "a_file_that_was_submitted_without_a_source_is_not_taken_over": {
        "a file without a source is taken over": replaced(commits, "takes_over", lambda *_: True)},
    "a_source_moves_with_its_document": {
        "a move loses the source": replaced(documents, "scope_after_tags", mis.scope_as_sent)},
    "a_document_taken_out_of_a_second_collection_is_not_doubled_in_the_first": {
        "a document stays in the scope of a collection that it left":
            replaced(documents, "scope_after_removal", mis.scope_as_sent),
    },
    "what_was_not_taken_is_named": {
        "what is left out is not told": says("getJob", left_out=[]),
        "tags are united without a bound": replaced(m, "MAX_TAGS", 1_000),
    },
    "a_replaced_document_keeps_what_was_not_sent": {
        "a replaced document loses its metadata": says("getDocument", metadata={})},
    "a_source_is_taken_off_and_its_document_goes_with_the_last": {
        "a source is taken off a document that stays":
            replaced(semantic_sources.Holder, "goes_with", lambda *_: False),
        "a document goes with the first source":
            replaced(semantic_sources.Holder, "goes_with", lambda *_: True),
    },
    "what_was_also_submitted_without_a_source_outlives_the_last": {
        "what has no source goes with the last":
            replaced(semantic_sources.Holder, "goes_with", lambda it, path: list(it.source_paths) == [path]),
    },
    "a_source_that_cannot_be_taken_off_stays": {
        "taking a source off ignores If-Match": asked("removeSource", lambda _: {"if_match": None})},
    "a_retried_removal_of_a_source_answers_as_it_did": {
        "a source taken off twice is refused": asked("removeSource", lambda _: {"idempotency_key": None})},
    "documents_are_listed_by_how_their_sources_begin": {
        "source_path_prefix is ignored": query("listDocuments", source_path_prefix=None)},
}  # fmt: skip

_DOCUMENTS: Breaks = {
    "a_document_is_read_without_chunks": {"chunks come unasked": query("getDocument", chunks=True)},
    "similar_notes_are_named_with_a_note": {
        "similar is ignored": query("getDocument", similar=0),
        "similar notes come unasked": query("getDocument", similar=3),
        "a note is similar to itself": replaced(handlers, "similar_to", mis.similar_to_itself),
    },
    "a_file_has_no_similar_notes": {
        "files have similar notes": answers("getDocument", lambda _: {"similar": []})},
    "chunks_come_slice_by_slice": {
        "chunk_offset is ignored": query("getDocument", chunk_offset=0),
        "chunk_limit is ignored": query("getDocument", chunk_limit=1000),
        "offsets of chunks are off by one": answers("getDocument", lambda a: {
            "chunks": [msgspec.structs.replace(each, start=each.start + 1) for each in a.chunks]}),
    },
    "a_note_is_read_as_it_was_sent": {
        "the text of a note is trimmed":
            answers("getDocument", lambda a: {"text": a.text.strip() if a.text else a.text}),
        "the text of a note comes unasked": query("getDocument", text=True),
    },
    "a_document_is_read_with_its_chunks_by_number_and_uid": {
        "a uid is no key": around("getDocument", mis.numbers_only)},
    "documents_are_filtered": {
        "documents: the tag is ignored": query("listDocuments", tag=None),
        "documents: the source path is ignored": query("listDocuments", source_path=None),
        "documents: the type is ignored": query("listDocuments", doc_type=None),
    },
    "documents_are_sorted": {
        "documents: sort_by is ignored": query("listDocuments", sort_by="created_at"),
        "documents: sort_order is ignored": query("listDocuments", sort_order="desc"),
    },
    "documents_come_page_by_page": {
        "documents: the offset is ignored": query("listDocuments", offset=0),
        "documents: the limit is ignored": query("listDocuments", limit=1000),
        "documents: the total is the page's": answers("listDocuments", lambda a: {"total": len(a.documents)}),
    },
    "documents_are_listed_by_several_tags": {
        "documents: of several tags the first counts": query("listDocuments", tag="stone")},
    "a_removed_document_is_gone": {
        "a removal is only said": around("deleteDocument", mis.said_to_be_removed),
        "a removal counts no chunks": says("deleteDocument", chunks=0),
    },
    "a_removal_names_its_document": {
        "a removal names another document": says("deleteDocument", document_id=7_000_000),
        "a removed source names another document":
            says("removeSource", document_uid="00000000-0000-4000-8000-000000000000"),
    },
    "clearing_wants_to_be_confirmed": {
        "clearing wants no confirmation": query("clearDocuments", confirm=True)},
    "clearing_cancels_what_was_accepted_before": {
        "clearing leaves the jobs": around("clearDocuments", mis.documents_alone_removed)},
    "clearing_removes_all": {"clearing counts nothing": says("clearDocuments", documents=0)},
    "a_patched_note_keeps_created_at": {
        "a patch resets created_at":
            answers("patchNote", lambda a: {"created_at": a.updated_at} if isinstance(a, m.Document) else {}),
    },
    "a_patched_note_renews_updated_at_and_its_version": {
        "a patch leaves updated_at": answers("patchNote", lambda a: {"updated_at": a.created_at}),
        "a patch leaves the version": answers("patchNote", lambda a: {"version": a.version - 1}),
    },
    "a_patched_note_keeps_its_identity": {
        "a patch gives another id": answers("patchNote", lambda a: {"id": a.id + 1}),
        "a patch drops the tags": says("patchNote", tags=[]),
    },
    "a_patched_note_is_found_by_its_new_text_alone": {
        "a patch leaves the text": body("patchNote", text=None, title="x")},
    "a_title_alone_is_patched": {"a patch leaves the title": body("patchNote", title="x")},
    "only_notes_are_patched": {
        "a file is patched": forgives("patchNote", "not_a_note", mis.document_as_it_is)},
    "a_patch_of_another_version_is_a_conflict": {
        "expected_version is ignored": body("patchNote", expected_version=None),
        "a conflict names no version":
            replaced(mount, "problem_response", mis.problem_without_member("current_version")),
    },
    "a_patch_honours_if_match": {
        "a patch ignores If-Match": asked("patchNote", lambda _: {"if_match": None})},
    "a_removal_honours_if_match": {
        "a removal ignores If-Match": asked("deleteDocument", lambda _: {"if_match": None})},
    "a_patch_that_does_not_fit_is_refused": {
        "an empty patch is taken": forgives("patchNote", "missing_parameter", mis.document_as_it_is)},
    "metadata_are_replaced_in_the_version_that_was_read": {
        "metadata ignore If-Match": asked("setMetadata", lambda _: {"if_match": None})},
    "metadata_are_replaced_whole": {
        "metadata that stand raise the version": answers("setMetadata", lambda a: {"version": a.version + 1}),
    },
    "tag_changes_honour_if_match": {
        "adding tags ignores If-Match": asked("addTags", lambda _: {"if_match": None}),
        "taking a tag off ignores If-Match": asked("removeTag", lambda _: {"if_match": None}),
    },
    "adding_tags_that_stand_changes_nothing": {
        "a tag that stands raises the version": answers("addTags", lambda a: {"version": a.version + 1})},
    "a_document_has_as_many_tags_as_it_may": {
        "added tags have no bound": replaced(semantic_documents, "check_tags_fit", mis.nothing)},
    "tags_are_added_and_taken_off": {
        "added tags replace the others": answers("addTags", lambda a: {"tags": a.tags[-2:]})},
    "a_tag_that_is_not_there_cannot_be_taken_off": {
        "an absent tag is taken off": forgives("removeTag", "tag_not_found", mis.document_as_it_is)},
    "tags_are_listed_with_their_counts": {
        "tags: the prefix is ignored": query("listTags", prefix=""),
        "tags: the offset is ignored": query("listTags", offset=0),
        "tags: chunks are not counted": answers("listTags", lambda a: {
            "tags": [msgspec.structs.replace(each, chunks=0) for each in a.tags]}),
        "tags: out of order": answers("listTags", lambda a: {"tags": a.tags[::-1]}),
    },
    "every_document_comes_with_its_version_as_etag": {
        "documents come without ETag":
            replaced(mount, "_adapt", mis.adapted(lambda response: response.headers.pop("ETag", None))),
    },
    "an_if_match_that_is_no_version_is_refused": {
        "an If-Match that is none is ignored": replaced(requests, "_if_match", mis.nothing)},
}  # fmt: skip

_SEARCH: Breaks = {
    "tags_are_all_of": {"tags are any-of": asked("search", mis.any_of)},
    "the_total_counts_what_the_filters_leave": {"tags are ignored": body("search", tags=[])},
    "tags_any_is_one_of": {"tags_any is ignored": body("search", tags_any=[])},
    "a_search_is_filtered_by_type_format_and_source": {
        "doc_type is ignored": body("search", doc_type=None),
        "filters.format is ignored": filters(format=None),
        "filters.source_type is ignored": filters(source_type=None),
        "filters.source_path_prefix is ignored": filters(source_path_prefix=None),
    },
    "a_moment_is_inclusive_at_both_ends": {
        "date_to is exclusive": around("search", mis.dropped_from_one_side)},
    "dates_are_inclusive_and_a_last_day_counts_whole": {
        "date_from is ignored": filters(date_from=None),
        "date_to is ignored": filters(date_to=None),
    },
    "dates_can_be_those_of_the_last_change": {"date_field is ignored": filters(date_field="created_at")},
    "an_end_before_the_start_is_a_contradiction": {
        "an end before the start is taken": forgives("search", "contradiction", mis.without_range)},
    "what_is_no_date_is_refused_by_name": {
        "what is no date is taken": forgives("search", "invalid_parameter", mis.without_range)},
    "top_bounds_the_results_and_not_the_total": {
        "the total is the page's": answers("search", lambda a: {"total": len(a.results)}),
        "top is ignored": body("search", top=100),
    },
    "the_total_is_the_same_whatever_top_is": {
        "the total follows top": answers("search", lambda a: {"total": max(a.total, len(a.results))})},
    "min_score_drops_what_is_below": {"min_score is ignored": body("search", min_score=0.0)},
    "max_chars_bounds_the_text_and_says_what_is_missing": {
        "max_chars is ignored": body("search", max_chars=None),
        "max_chars omits in silence": says("search", omitted=0),
        "max_chars cuts in silence": results(lambda _: {"truncated": False}),
    },
    "max_tokens_bounds_the_text_too": {"max_tokens is ignored": body("search", max_tokens=None)},
    "of_two_bounds_the_tighter_one_rules": {
        "max_chars is forgotten over max_tokens": asked("search", lambda i: {"body": msgspec.structs.replace(
            i.body, max_chars=None if i.body.max_tokens else i.body.max_chars)}),
    },
    "locations_are_results_without_text": {"locations have text": body("search", detail="full")},
    "neighbors_come_in_order_around_a_result": {
        "neighbors is ignored": body("search", neighbors=0),
        "neighbors change sides": results(lambda r: {"before": r.after, "after": r.before}),
    },
    "explain_gives_the_parts_of_the_score": {
        "explain is ignored": body("search", explain=False),
        "the explanation is not the score's": results(lambda r: {"score": r.score / 2}),
    },
    "nothing_is_explained_unasked": {"explain comes unasked": body("search", explain=True)},
    "every_mode_finds_and_says_which_it_was": {"mode is ignored": body("search", mode=None, fts_only=None)},
    "fts_only_is_mode_fts": {
        "fts_only is ignored":
            asked("search", lambda i: {"body": msgspec.structs.replace(i.body, fts_only=None)}),
    },
    "fts_only_against_mode_is_a_contradiction": {
        "fts_only against mode is taken": forgives("search", "contradiction", mis.contradicting)},
    "the_best_come_first": {
        "the worst come first": answers("search", lambda a: {"results": a.results[::-1]})},
    "a_note_is_found_by_its_words": {
        "scores are over 1": results(lambda r: {"score": r.score + 1.0}),
        "results lose their tags": results(lambda _: {"tags": []}),
    },
    "an_empty_base_answers_nothing": {"nothing is ever weak": says("search", weak=False)},
    "the_same_words_match_well_by_meaning": {"everything is weak": says("search", weak=True)},
}  # fmt: skip

_QUERY: Breaks = {
    "only_what_holds_the_phrase_is_a_result": {
        "marks are plain text": replaced(semantic_search, "SYNTAX", re.compile("(?!)"))},
    "words_of_a_phrase_stand_in_its_order_side_by_side_and_whole": {
        "a phrase is its words": replaced(semantic_query, "_divided", mis.words_alone),
        "a phrase is part of a text": replaced(semantic_query.Wording, "passes", mis.holding_the_letters),
    },
    "a_phrase_is_found_whatever_its_case_accents_and_punctuation": {
        "accents tell words apart": replaced(semantic_query, "_folded", str.casefold)},
    "a_phrase_may_stand_in_the_title_or_in_a_heading": {
        "a title holds nothing": replaced(semantic_query.Wording, "passes", mis.holding_in_the_text_alone),
        "a phrase goes from the title into the text":
            replaced(semantic_query.Wording, "passes", mis.holding_all_in_one),
    },
    "a_phrase_stands_between_double_quotation_marks_of_any_kind": {
        "curly marks are text": replaced(semantic_query, "_OPENING", re.compile('"'))},
    "an_unpaired_mark_is_plain_text": {
        "inches begin a phrase": replaced(semantic_query, "_phrases", mis.phrases_to_the_end)},
    "a_passage_holds_all_phrases": {
        "one phrase is enough": replaced(semantic_query.Wording, "passes", mis.holding_one_phrase)},
    "a_phrase_is_found_inside_a_sentence_without_spaces": {
        "characters are no words": replaced(semantic_query, "_UNSPACED_RUN", re.compile("(?!)"))},
    "what_holds_an_excluded_word_is_no_result": {
        "words are not excluded": replaced(semantic_query, "_excluded_words", lambda *_: [])},
    "what_holds_an_excluded_phrase_is_no_result": {
        "phrases are not excluded": replaced(semantic_query, "_phrase", mis.phrase_that_is_looked_for)},
    "a_minus_of_another_kind_excludes_nothing": {
        "every minus excludes":
            replaced(semantic_query, "_excluded_words", mis.excluded_wherever_a_minus_stands),
    },
    "words_of_phrases_count_and_excluded_words_do_not": {
        "excluded words count": replaced(semantic_search, "query_of", mis.ranked_by_the_whole_query),
        "words of phrases do not count": replaced(semantic_search, "query_of", mis.ranked_without_phrases),
    },
    "the_total_counts_what_passes": {
        "the total counts what does not pass": around("search", mis.total_without_syntax)},
    "a_query_that_only_leaves_out_is_refused": {
        "a search for nothing is answered":
            forgives("search", "invalid_parameter", mis.looking_for_what_is_excluded),
    },
    "where_nothing_passes_the_answer_is_weak": {
        "what does not pass makes no answer weak": says("search", weak=False)},
    "beside_more_than_six_words_a_phrase_excludes_nothing": {
        "every phrase is a condition": body("search", strict=True)},
    "beside_more_than_six_words_a_phrase_raises_the_score": {
        "phrases leave no trace": replaced(semantic_search, "PHRASES", 0.0)},
    "where_no_passage_holds_a_phrase_the_best_without_it_follow_marked": {
        "no best without the phrase": body("search", strict=True)},
    "further_pages_without_a_phrase_are_marked": {
        "marks end with the first page": replaced(search, "opened", mis.counted_after_the_first_page)},
    "phrases_go_with_filters_and_bounds": {"filters end with syntax": body("search", tags=[])},
}  # fmt: skip

_VECTOR_SEARCH: Breaks = {
    "marks_are_text_to_it": {
        "marks are syntax to all": replaced(search, "ParsedQuery", semantic_query.parse_query)},
}  # fmt: skip

_CONTEXT: Breaks = {
    "a_citation_names_document_place_and_quote": {
        "results are not cited": body("search", citations=False),
        "a citation hashes something else": replaced(semantic_search, "quote_hash", mis.hash_of_another_kind),
    },
    "nothing_is_cited_unasked": {"citations come unasked": body("search", citations=True)},
    "what_is_cited_is_what_was_answered": {
        "a citation is of the whole chunk": results(lambda r: {
            "citation": r.citation and msgspec.structs.replace(r.citation, end=r.chunk.end)}),
    },
    "a_quote_in_other_words_is_changed": {"every quote is there": says("checkCitation", status="there")},
    "a_quote_that_has_moved_is_found_in_its_new_place": {
        "nothing moves": replaced(documents, "find_quote", mis.found_in_its_place_alone)},
    "of_several_places_the_nearest_is_the_new_one": {
        "the last place is the new one": replaced(semantic_search, "_occurrences", mis.last_first)},
    "a_quote_is_there_until_it_is_changed": {
        "a checked citation keeps its version": answers("checkCitation", lambda a: {
            "citation": a.citation and msgspec.structs.replace(a.citation, version=1)}),
    },
    "a_near_duplicate_becomes_part_of_the_better_result": {
        "nothing collapses": replaced(diversity, "collapse_duplicates", list),
        "duplicates go in silence": results(lambda _: {"duplicates": UNSET}),
        "collapse comes unasked": body("search", collapse=True),
    },
    "another_figure_makes_no_duplicate": {
        "figures are words like others": replaced(diversity, "_FIGURE", re.compile("(?!)"))},
    "neighbouring_results_become_one": {
        "neighbours stay apart": replaced(diversity, "merge_neighbors", lambda results, _top: results),
        "merged neighbours are lost": results(lambda _: {"before": [], "after": []}),
    },
    "locations_name_what_was_merged": {
        "locations lose what was merged": replaced(semantic_search, "without_text", mis.places_alone)},
    "one_document_does_not_fill_a_page_while_others_compare": {
        "per_document is ignored": body("search", per_document=None)},
    "one_document_fills_a_page_where_nothing_else_compares": {
        "per_document leaves room": replaced(diversity, "limit_documents", mis.few_of_each)},
    "a_quote_of_a_removed_document_is_gone": {
        "what is gone has changed":
            answers("checkCitation", lambda a: {"status": "changed" if a.status == "gone" else a.status}),
    },
}  # fmt: skip

_PAGES: Breaks = {
    "pages_have_each_result_once_in_the_order_of_one_ranking": {
        "pages are not known": body("search", pages=False),
        "a cursor is passed over": body("search", cursor=None),
        "the next page has the scores of none":
            replaced(search, "results_at", lambda places, found: [found[each.chunk_id] for each in places]),
    },
    "the_next_page_is_of_the_same_ranking_whatever_happened_since": {
        "the next page is of a new ranking": replaced(search, "_after_cursor", mis.ranked_anew)},
    "what_had_no_room_on_a_page_is_on_the_next": {
        "what had no room is lost": replaced(search, "places_of", mis.places_behind_the_page)},
    "what_had_no_room_beside_a_result_is_on_a_later_page": {
        "what had no room beside a result is lost":
            replaced(search, "places_after", lambda places, page: places[max(1, len(page)) :]),
    },
    "documents_share_pages_that_were_cut": {
        "a page goes on where the last was cut":
            replaced(search, "in_pages", lambda results, _request: results),
    },
    "what_no_longer_passes_the_filters_is_left_out[filters0]": {
        "the next page passes all filters": replaced(search, "_tests", mis.tests_of_first_pages)},
    "pages_say_much_each": {
        "duplicates are results of the next page": replaced(diversity, "collapse_duplicates", list)},
    "a_cursor_goes_with_its_own_request[change0]": {
        "a cursor goes with any request": replaced(cursors, "_digest", lambda *_: "")},
}  # fmt: skip

_RANKING: Breaks = {
    "a_passage_from_below_the_first_results_can_rise": {
        "ranking is ignored": body("search", ranking=None),
        "only what is answered is ranked": replaced(diversity, "pool_size", lambda top: top),
    },
    "without_being_asked_for_nothing_is_ranked": {
        "weights of a request are ignored": replaced(search, "ranking_plan", mis.ranked_as_usual)},
    "weights_that_do_not_add_up_are_refused": {
        "weights may add up to anything": replaced(ranking, "misfit", mis.nothing)},
    "a_final_score_is_its_parts_by_their_weights": {
        "the default weights are others":
            replaced(ranking, "DEFAULT_WEIGHTS", m.RankingWeights(semantic=1.0)),
    },
    "what_was_found_useful_comes_first": {
        "the final score leaves feedback out": replaced(documents.Documents, "votes", lambda _self: {})},
    "confluence_is_reputed_over_the_web_and_that_over_manual": {
        "confluence is not reputed": replaced(ranking, "reputation_score", lambda *_: 0.4)},
    "a_query_is_of_a_kind_by_its_form": {
        "everything is a question": replaced(ranking, "query_kind", lambda _: "question")},
    "a_second_look_is_taken_or_its_lack_explained": {
        "the lack of a reranker is not told": says("search", rerank_failure=UNSET)},
    "nobody_has_a_second_look_who_does_not_want_it": {
        "what is not reranked is said to be": says("search", reranked=True)},
    "a_voice_counts_once_and_its_last_rating_stands": {
        "every signal is a voice": asked("giveFeedback", lambda _: {"user": str(uuid4())}),
        "the first rating stands":
            replaced(documents, "voted", lambda standing, signal: standing or feedback.voted(None, signal)),
    },
    "feedback_is_half_clicks_and_half_ratings": {
        "all are one voice": asked("giveFeedback", lambda _: {"user": None}),
        "a few voices are all": replaced(feedback, "PRIOR", 1),
    },
    "feedback_changes_no_version_and_goes_with_its_document": {
        "feedback is a change": around("giveFeedback", mis.changing_the_document)},
    "a_retry_of_feedback_answers_as_it_did": {
        "retried feedback is looked at again": asked("giveFeedback", lambda _: {"idempotency_key": None})},
}  # fmt: skip

_IDEMPOTENCY: Breaks = {
    "a_key_with_another_request_is_a_mismatch": {
        "a key with another request is taken": replaced(Answers, "given", mis.mismatch_taken)},
    "a_retried_note_is_the_same_job": {
        "keys are ignored": replaced(requests, "_idempotency_key", mis.nothing)},
    "a_key_belongs_to_its_operation": {
        "a key is shared by operations": replaced(Answers, "given", mis.shared_between_operations)},
    "a_retried_removal_answers_as_it_did": {
        "a retried removal is not remembered": asked("deleteDocument", lambda _: {"idempotency_key": None})},
    "a_retried_clearing_removes_nothing_more": {
        "a retried clearing clears again": asked("clearDocuments", lambda _: {"idempotency_key": None})},
    "a_retried_cancel_answers_as_it_did": {
        "a retried cancel is refused": asked("cancelJob", lambda _: {"idempotency_key": None})},
    "a_retried_retry_answers_as_it_did": {
        "a retried retry is refused": asked("retryJob", lambda _: {"idempotency_key": None})},
    "a_retried_patch_answers_as_it_did": {
        "a retried patch is a conflict": asked("patchNote", lambda _: {"idempotency_key": None})},
    "retried_tag_changes_answer_as_they_did": {
        "retried tags are a conflict": asked("addTags", lambda _: {"idempotency_key": None}),
        "a tag taken off twice is refused": asked("removeTag", lambda _: {"idempotency_key": None}),
    },
    "a_key_that_is_no_key_is_refused": {
        "any key is an idempotency key":
            replaced(requests, "_idempotency_key", lambda headers: headers.get("Idempotency-Key")),
    },
}  # fmt: skip

_UPDATES: Breaks = {
    "an_update_that_takes_long_is_a_job": {
        "an update is no job of its note":
            answers("patchNote", lambda a: {"document_id": None} if isinstance(a, m.Job) else {}),
    },
    "a_retry_under_its_key_joins_the_update": {
        "a retried update is done again": asked("patchNote", lambda _: {"idempotency_key": None})},
    "the_same_update_sent_again_joins_it": {
        "the same update is begun twice": replaced(state.State, "_joined", mis.nothing)},
    "an_expected_version_is_looked_at_again_in_the_end": {
        "a version is expected at the beginning alone":
            replaced(commits, "replace_note", mis.replaced_whatever_the_version),
        "an update is retried in vain": replaced(simulated_jobs, "may_succeed_again", lambda *_: True),
    },
    "an_update_to_what_stands_changes_nothing": {
        "the same text again is a version": replaced(commits, "replace_note", mis.replaced_by_what_stands)},
    "a_cancelled_update_leaves_the_note": {
        "an update is cancelled in words": around("cancelJob", mis.only_said_to_be_cancelled)},
}  # fmt: skip

_PROTOCOL: Breaks = {
    "a_header_that_tells_who_asks_stands_once": {
        "of two keys one is looked at": replaced(requests, "_ONCE", ())},
    "an_unknown_query_parameter_is_refused": {
        "an unknown query parameter is passed over":
            replaced(requests, "convert_query", mis.unknown_passed_over),
    },
    "a_query_parameter_twice_is_refused": {
        "the last of two parameters wins": replaced(requests, "convert_query", mis.last_one_wins)},
    "with_a_key_set_only_its_bearer_is_served": {
        "401 comes without WWW-Authenticate":
            replaced(mount, "problem_response", mis.problem_without("WWW-Authenticate")),
        "any key is served": replaced(app, "_key_refusal", mis.nothing),
        "a key that begins right is served": replaced(app, "_key_refusal", mis.key_by(
            lambda sent, key: re.sub("^[Bb]earer ", "", sent).startswith(key))),
        "a key without its scheme is served":
            replaced(app, "_key_refusal", mis.key_by(lambda sent, key: sent.split(" ")[-1] == key)),
        "the probes want the key": replaced(mount, "is_probe", mis.nothing),
    },
    "another_content_type_is_refused": {
        "any content type is JSON": replaced(mount, "json_body", mis.any_body)},
    "another_method_is_told_which_are_taken": {
        "4xx answers lack Allow": replaced(mount, "sorted", lambda _methods: [])},
}  # fmt: skip

_UPLOADS: Breaks = {
    "a_filename_never_becomes_a_path": {
        "a filename is a path": replaced(multipart, "bare_name", lambda name: name or "")},
    "a_body_that_does_not_fit_is_refused": {
        "a form's unknown field is another fault":
            replaced(multipart, "misfit", lambda *_: EngineError("invalid_parameter", "no")),
    },
    "a_file_is_taken_in_with_its_fields": {"a file's size is not its own": says("getDocument", size_bytes=1)},
    "a_file_is_accepted_as_a_job": {"a file's name is lost": says("createJob", filename=None)},
    "a_pdf_is_found_with_its_page": {
        "pages are not told": says("getDocument", pages=None),
        "a passage has no page": results(lambda r: {"chunk": msgspec.structs.replace(r.chunk, page=None)}),
    },
    "an_empty_file_is_an_empty_document": {
        "an empty file reads as success": says("getDocument", status="searchable", status_reason=None)},
    "an_unknown_kind_of_file_is_refused_by_name": {
        "any kind of file is text": replaced(handlers, "_format", lambda *_: formats.format_of("a.txt"))},
    "text_of_an_unknown_kind_is_taken_where_its_part_says_so": {
        "a part's type is ignored":
            replaced(handlers, "format_of", lambda name, _type: formats.format_of(name)),
    },
    "a_text_is_decoded_as_its_part_declares": {
        "a declared encoding is ignored": replaced(multipart, "_conversion", mis.nothing)},
    "a_text_that_is_not_in_its_declared_encoding_is_refused": {
        "any declared encoding is taken": replaced(multipart, "_conversion", mis.nothing)},
    "a_file_has_a_report_of_its_reading": {
        "no page is without text": says("getDocument", fidelity=m.Fidelity())},
    "a_short_text_in_an_undeclared_encoding_is_refused": {
        "short texts are decoded": replaced(readers, "in_known_encoding", lambda data, _: (data.decode(
            "cp1252").encode(), "cp1252")),
    },
    "a_file_that_cannot_be_read_fails_its_job": {"a failed job has no code": says("getJob", error=None)},
    "the_same_file_twice_is_one_document": {"the same file twice is two": says("getJob", deduplicated=False)},
    "every_kind_of_file_is_found_by_its_text": {"a file is always text": says("getDocument", format="txt")},
}  # fmt: skip

_STATE: Breaks = {
    "the_version_is_v3_0_0_or_later": {"the version is older": says("getStatus", version="v2.9.9")},
    "status_counts_documents_by_state_and_type": {
        "documents are not counted":
            answers("getStatus", lambda a: {"documents": msgspec.structs.replace(a.documents, total=0)}),
        "empty documents are searchable": answers("getStatus", lambda a: {
            "documents": msgspec.structs.replace(a.documents, searchable=a.documents.total, empty=0)}),
        "chunks are not counted": says("getStatus", chunks=0),
    },
    "status_counts_jobs_by_state": {
        "failed jobs are not counted":
            answers("getStatus", lambda a: {"queue": msgspec.structs.replace(a.queue, failed=0)}),
    },
    "a_failed_job_is_open_until_its_source_succeeds": {
        "a failure that was made good is open":
            answers("getStatus", lambda a: {"open_failures": a.queue.failed}),
    },
    "history_counts_documents_and_unanswered_questions": {
        "a question without a match is answered":
            answers("getStatus", lambda a: {"history": a.history and msgspec.structs.replace(a.history,
                questions=[msgspec.structs.replace(day, unanswered=0) for day in a.history.questions])}),
    },
    "status_tells_model_device_and_storage": {
        "the model has no name":
            answers("getStatus", lambda a: {"model": msgspec.structs.replace(a.model, name="")}),
        "the storage is out of reach":
            answers("getStatus", lambda a: {"storage": msgspec.structs.replace(a.storage, accessible=False)}),
    },
    "status_has_what_holds_of_the_sandbox": {
        "a part of the sandbox holds and is missing":
            answers("getStatus", lambda a: {"sandbox": msgspec.structs.replace(
                a.sandbox, missing=dict.fromkeys(a.sandbox.holds or ["none"], ""))}),
    },
    "status_follows_the_last_change": {
        "the last change is not told": says("getStatus", last_updated=mis.EARLY)},
    "the_probes_answer": {
        "the process says it is ready": says("getHealth", status="ready"),
        "readiness says only that it lives": says("getReadiness", status="ok"),
    },
}  # fmt: skip

_VERSIONS: Breaks = {
    "a_replaced_text_is_kept": {
        "a replaced text is lost": replaced(versions.History, "keep", mis.nothing),
        "versions say what stands now": answers("listVersions", mis.with_title_of_now),
        "a version has no metadata": says("getVersion", metadata={}),
        "the text of a version is trimmed": answers("getVersion", lambda a: {"text": a.text.strip()}),
    },
    "a_part_of_a_version_is_read": {
        "text_offset is ignored": query("getVersion", text_offset=0),
        "text_limit is ignored": query("getVersion", text_limit=99),
        "a part says it is all": answers("getVersion", lambda a: {"text_length": len(a.text)}),
    },
    "a_version_is_restored_in_its_document": {
        "a restore is only said": around("restoreVersion", mis.said_to_be_restored),
        "a restore takes the tags back": replaced(arrivals, "_OF_CONTENT", (*arrivals._OF_CONTENT, "tags")),
        "a restore leaves the title": replaced(arrivals, "_OF_CONTENT", arrivals._OF_CONTENT[1:]),
        "a restore loses what stood there": replaced(versions.History, "keep", mis.kept_once),
    },
    "what_stands_already_is_not_restored_again": {
        "a restore of what stands is a change":
            answers("restoreVersion", lambda a: {"version": a.version + 1}),
    },
    "a_note_that_became_a_file_of_the_same_bytes_is_a_note_again": {
        "what has the same bytes is not restored":
            replaced(arrivals, "_stands", lambda one, other: one.document.sha256 == other.document.sha256),
    },
    "a_file_is_restored_as_it_was_read": {
        "a restored file has one passage": replaced(arrivals, "_again", mis.first_passage_again)},
    "a_removed_document_is_brought_back": {
        "a removed document is not kept": query("deleteDocument", purge=True),
        "the trash is empty": says("listTrash", versions=[], total=0),
        "what is brought back stays in the trash": replaced(versions.History, "bring_back", mis.nothing),
        "what is brought back has no source":
            answers("restoreVersion", lambda _: {"source_path": None, "source_paths": []}),
    },
    "an_earlier_version_of_a_removed_document_is_brought_back": {
        "what was removed is forgotten for an earlier version":
            replaced(versions.History, "bring_back", mis.all_forgotten),
    },
    "a_source_that_has_another_document_stays_with_it": {
        "a source is taken from another document": replaced(arrivals, "holders", mis.none)},
    "a_document_that_goes_with_its_source_is_kept": {
        "what goes with its source is not kept": around("removeSource", mis.purged_with_its_source)},
    "the_trash_has_what_was_removed_last_first": {
        "the trash: the oldest first": answers("listTrash", lambda a: {"versions": a.versions[::-1]}),
        "the trash: the offset is ignored": query("listTrash", offset=0),
    },
    "what_is_purged_cannot_be_restored": {
        "a purge keeps all": replaced(versions.History, "drop", lambda self, number: len(self.by_id[number])),
        "purge is ignored at a removal": query("deleteDocument", purge=False),
        "clearing keeps versions": replaced(state, "History", mis.history_that_stays),
    },
    "an_unknown_version_is_an_error": {
        "an unknown version is the latest":
            replaced(versions.History, "find", lambda self, number, _version, _now: self.by_id[number][-1]),
    },
    "a_restore_of_another_version_than_expected_is_refused": {
        "restoring ignores If-Match": asked("restoreVersion", lambda _: {"if_match": None})},
    "a_retried_restore_happens_once": {
        "a retried restore is done again": asked("restoreVersion", lambda _: {"idempotency_key": None})},
}  # fmt: skip

_ORIGINALS: Breaks = {
    "a_file_comes_back_as_it_was_sent": {
        "a kept file is cut": answers("getOriginal", mis.half_of_the_file),
        "a document does not tell of its file": says("getDocument", original=UNSET),
    },
    "a_page_is_drawn_with_a_passage_marked": {
        "a passage is not marked on its page": query("getPicture", chunk=None),
        "another page is shown": query("getPicture", page=2),
    },
    "it_is_to_be_saved_under_its_name_and_never_run": {
        "a file is shown":
            replaced(downloads, "content_disposition", lambda name: f'inline; filename="{name}"'),
        "a file's name breaks out":
            replaced(downloads, "content_disposition", lambda _: 'attachment; filename="page.html"'),
        "a browser may guess what a file is": replaced(downloads, "SAFE_HEADERS", {}),
    },
    "one_of_each_content_is_kept_until_its_last_document_has_gone": {
        "equal files are kept twice": replaced(documents.Documents, "kept_bytes", mis.bytes_of_every_file)},
    "what_is_kept_of_a_document_keeps_its_file": {
        "what is kept of a document loses its file":
            replaced(versions.History, "keep", mis.kept_without_file),
    },
    "clearing_keeps_no_file": {"clearing keeps files": replaced(state, "History", mis.history_that_stays)},
    "what_has_no_file_says_why": {
        "a note has a file": replaced(semantic_documents, "check_original_kept", mis.refused_as_absent)},
}  # fmt: skip


_CODES = {
    "invalid_request": (JOBS, "a_text_that_is_no_unicode_is_refused"),
    "invalid_parameter": (JOBS, "a_wait_out_of_range_is_refused"),
    "unknown_parameter": (PROTOCOL, "an_unknown_query_parameter_is_refused"),
    "missing_parameter": (JOBS, "a_note_that_does_not_fit_is_refused_by_name"),
    "contradiction": (SEARCH, "an_end_before_the_start_is_a_contradiction"),
    "unauthorized": (PROTOCOL, "an_unknown_path_wants_the_key_too"),
    "route_not_found": (PROTOCOL, "an_unknown_path_is_not_found"),
    "method_not_allowed": (PROTOCOL, "another_method_is_told_which_are_taken"),
    "document_not_found": (DOCUMENTS, "an_absent_document_is_not_found"),
    "job_not_found": (JOBS, "an_unknown_job_is_not_found"),
    "original_not_kept": (ORIGINALS, "what_has_no_file_says_why"),
    "page_not_found": (PAGES, "what_was_no_answers_cursor_leads_to_no_page[x]"),
    "source_not_found": (SOURCES, "a_source_that_cannot_be_taken_off_stays"),
    "tag_not_found": (DOCUMENTS, "a_tag_that_is_not_there_cannot_be_taken_off"),
    "not_a_note": (DOCUMENTS, "only_notes_are_patched"),
    "version_conflict": (DOCUMENTS, "a_patch_of_another_version_is_a_conflict"),
    "job_finished": (JOBS, "a_job_that_has_ended_cannot_be_cancelled"),
    "job_not_retryable": (JOBS, "only_a_failed_job_can_be_tried_again"),
    "idempotency_mismatch": (IDEMPOTENCY, "a_key_with_another_request_is_a_mismatch"),
    "confirmation_required": (DOCUMENTS, "clearing_wants_to_be_confirmed"),
    "payload_too_large": (PROTOCOL, "a_giant_json_body_is_refused"),
    "unsupported_media_type": (PROTOCOL, "another_content_type_is_refused"),
    "unsupported_format": (UPLOADS, "an_unknown_kind_of_file_is_refused_by_name"),
}
_SUCCESSES = {
    "search": (SEARCH, "an_empty_base_answers_nothing"),
    "checkCitation": (CONTEXT, "a_quote_of_a_removed_document_is_gone"),
    "createJob": (JOBS, "a_note_is_accepted_as_a_job"),
    "listJobs": (JOBS, "jobs_are_listed_newest_first_page_by_page"),
    "getJob": (JOBS, "a_completed_job_names_its_document"),
    "cancelJob": (JOBS, "a_cancelled_job_leaves_nothing"),
    "retryJob": (JOBS, "a_failed_job_can_be_tried_again"),
    "listDocuments": (DOCUMENTS, "documents_are_sorted"),
    "getDocument": (DOCUMENTS, "a_document_is_read_without_chunks"),
    "deleteDocument": (DOCUMENTS, "a_document_is_removed_by_its_uid"),
    "removeSource": (SOURCES, "a_source_is_taken_off_and_its_document_goes_with_the_last"),
    "clearDocuments": (DOCUMENTS, "clearing_removes_all"),
    "patchNote": (DOCUMENTS, "a_title_alone_is_patched"),
    "setMetadata": (DOCUMENTS, "metadata_are_replaced_whole"),
    "giveFeedback": (RANKING, "feedback_that_does_not_fit_is_refused"),
    "addTags": (DOCUMENTS, "adding_tags_that_stand_changes_nothing"),
    "removeTag": (DOCUMENTS, "an_odd_tag_travels_in_a_path"),
    "listTags": (DOCUMENTS, "a_prefix_is_not_a_pattern"),
    "getStatus": (STATE, "the_version_is_v3_0_0_or_later"),
    "getHealth": (STATE, "the_probes_answer"),
    "getReadiness": (STATE, "the_probes_answer"),
}


MUTANTS: list[Mutant] = [
    *mutants_of(JOBS, _JOBS),
    *mutants_of(SOURCES, _SOURCES),
    *mutants_of(DOCUMENTS, _DOCUMENTS),
    *mutants_of(SEARCH, _SEARCH),
    *mutants_of(QUERY, _QUERY),
    *mutants_of("test_vector_search", _VECTOR_SEARCH),
    *mutants_of(CONTEXT, _CONTEXT),
    *mutants_of(PAGES, _PAGES),
    *mutants_of(RANKING, _RANKING),
    *mutants_of(IDEMPOTENCY, _IDEMPOTENCY),
    *mutants_of(UPDATES, _UPDATES),
    *mutants_of(PROTOCOL, _PROTOCOL),
    *mutants_of(UPLOADS, _UPLOADS),
    *mutants_of(STATE, _STATE),
    *mutants_of(VERSIONS, _VERSIONS),
    *mutants_of(ORIGINALS, _ORIGINALS),
    *(
        mutant(f"{code} has another status", module=module, test=test, broken=status_of_code(code))
        for code, (module, test) in _CODES.items()
    ),
    *(
        mutant(f"{id_} answers another success", module=module, test=test, broken=status_of_operation(id_))
        for id_, (module, test) in _SUCCESSES.items()
    ),
    *RAGLER_MUTANTS,
    *ACCESS_MUTANTS,
    *WHOLE_SUITE_MUTANTS,
]
"""Every mutant, each with the test that should notice it."""
