"""Mutants of authorization and access scopes, one promise each."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch

from kb_contracts.access.reach import ACCESS, RIGHTS, Access, Reach, access_from
from kb_contracts.semantics import cursors
from kb_http import requests
from kb_http.mount import Handler
from kb_http.requests import Incoming
from kb_simulator.engine import collections, documents, handlers, sources, state, view
from kb_simulator.engine.jobs import JobRecord
from tests.mutation.breaking import Break, Mutant, around, asked, mutant, replaced

_a = partial(mutant, module="test_access")


def everything(operation_id: str) -> Break:
    """The handler ignores the access scope."""
    return asked(operation_id, lambda incoming: {"access": Access(incoming.access.name)})


def reaches_names_alone(self: Reach, tag: str) -> bool:
    return tag in self.tags


whole_access = requests.narrowed
"""The original function, saved before a mutant replaces it."""


def the_last_header(access: Access, headers: Any, _published: Reach | None) -> Access:
    values = headers.getall(ACCESS, ())
    return access.narrowed(access_from(values[-1])) if values else access


def with_all_rights(access: Access, headers: Any, _published: Reach | None) -> Access:
    left = whole_access(access, headers)
    return Access(left.name, reach=left.reach)


def without_rights(access: Access, headers: Any, _published: Reach | None) -> Access:
    left = whole_access(access, headers)
    return Access(left.name, left.rights if left.rights == RIGHTS else frozenset(), left.reach)


def unkept(whole: Any, _reach: Reach) -> Any:
    return whole.history


async def later_pages_of_everything(incoming: Incoming, inner: Handler) -> Any:
    """A cursor gives access to documents outside the scope."""
    if incoming.body.cursor is None:
        return await inner(incoming)
    with patch.object(state.State, "seen", lambda self, _: self.documents):
        return await inner(incoming)


def job_by_tags(record: JobRecord, _documents: Any, reach: Reach) -> bool:
    return reach.admits(record.job.tags)


ACCESS_MUTANTS: list[Mutant] = [
    _a("rights are not asked for", test="a_right_that_is_missing_is_refused",
       broken=replaced(requests, "narrowed", with_all_rights)),
    _a("every right is missing", test="a_right_that_is_missing_is_refused",
       broken=replaced(requests, "narrowed", without_rights)),
    _a("a role may do anything elsewhere", test="the_role_service_reads_and_no_more",
       broken=replaced(requests, "may_change", lambda _: True)),
    _a("a role in capitals may do anything", test="the_role_service_reads_and_no_more",
       broken=replaced(requests, "may_change", lambda role: "service" not in (role or ""))),
    _a("a header that does not fit is none", test="a_header_that_does_not_fit_is_refused",
       broken=replaced(requests, "access_from", lambda _: Access())),
    _a("the last of two headers counts", test="a_header_that_comes_twice_is_refused",
       broken=replaced(requests, "narrowed", the_last_header)),
    _a("every collection is within reach", test="collections_out_of_reach_are_not_there",
       broken=replaced(Reach, "has", lambda self, tag: tag.startswith("collection:"))),
    _a("prefixes reach nothing", test="what_is_listed_and_counted_is_within_reach",
       broken=replaced(Reach, "has", reaches_names_alone)),
    _a("what is kept is everybody's", test="what_was_kept_of_another_collection_stays_out_of_reach",
       broken=replaced(view, "_history_within", unkept)),
    _a("a removed document is everybody's", test="a_removed_document_out_of_reach_is_not_there",
       broken=replaced(view, "_history_within", unkept)),
    *(
        _a(f"{id_} reaches everything", test="a_document_out_of_reach_is_not_there", broken=everything(id_))
        for id_ in (
            "getDocument", "listVersions", "getVersion", "restoreVersion", "purgeVersions", "setMetadata",
            "giveFeedback", "addTags", "removeTag", "removeSource", "deleteDocument", "patchNote",
        )
    ),
    *(
        _a(f"{id_} lists everything", test="what_is_listed_and_counted_is_within_reach",
           broken=everything(id_))
        for id_ in ("listDocuments", "listTags", "listJobs", "getStatus")
    ),
    _a("the trash is everybody's", test="a_removed_document_out_of_reach_is_not_there",
       broken=everything("listTrash")),
    _a("a search reaches everything", test="a_search_knows_nothing_of_what_is_out_of_reach",
       broken=everything("search")),
    _a("similar notes are everybody's", test="notes_out_of_reach_are_not_similar",
       broken=everything("getDocument")),
    *(
        _a(f"{id_} knows every collection", test="collections_out_of_reach_are_not_there",
           broken=everything(id_))
        for id_ in ("listCollections", "getCollection", "vectorSearch", "putCollection")
    ),
    _a("descriptions are everybody's", test="collections_out_of_reach_are_not_there",
       broken=replaced(state, "collections_within", lambda collections, _: collections)),
    _a("any id is free", test="an_id_does_not_show_whether_it_is_taken",
       broken=replaced(collections, "check_described", lambda *_: None)),
    _a("anything is taken in", test="a_submission_needs_a_tag_within_reach",
       broken=replaced(handlers, "check_submission", lambda *_: None)),
    _a("anything may be the same", test="nothing_out_of_reach_is_a_duplicate",
       broken=replaced(sources, "_is_within", lambda *_: True)),
    _a("anything may be replaced", test="nothing_out_of_reach_is_replaced",
       broken=replaced(sources, "_is_within", lambda *_: True)),
    *(
        _a(f"{id_} finds every job", test="jobs_out_of_reach_are_not_there", broken=everything(id_))
        for id_ in ("getJob", "cancelJob", "retryJob")
    ),
    _a("a job is known by its tags alone", test="the_job_of_a_document_goes_where_that_goes",
       broken=replaced(state, "is_job_within", job_by_tags)),
    _a("any tag is given and taken", test="collections_are_given_and_taken_within_reach",
       broken=replaced(documents, "check_changes", lambda *_: None)),
    _a("a document is sent away", test="collections_are_given_and_taken_within_reach",
       broken=replaced(documents, "check_stays", lambda *_: None)),
    _a("nothing is put on instead", test="a_document_is_moved_by_who_reaches_both_ends",
       broken=asked("removeTag", lambda i: {"query": type(i.query)()})),
    _a("a part clears the whole", test="whoever_reaches_a_part_does_not_clear_the_whole",
       broken=replaced(handlers, "check_whole", lambda *_: None)),
    _a("an idempotency key is everybody's", test="an_idempotency_key_is_one_callers",
       broken=replaced(requests, "credential_of", lambda *_: "one")),
    _a("a voice is everybody's", test="feedback_is_each_callers_own",
       broken=replaced(requests, "credential_of", lambda *_: "one")),
    _a("a cursor is everybody's", test="a_cursor_is_of_one_reach",
       broken=lambda: patch.object(cursors, "_digest", partial(_digest_of_request, cursors._digest))),
    _a("a later page reaches everything", test="what_has_gone_out_of_reach_is_on_no_later_page",
       broken=around("search", later_pages_of_everything)),
    _a("a citation leads anywhere", test="a_citation_out_of_reach_is_gone",
       broken=everything("checkCitation")),
]  # fmt: skip
"""Every mutant, each with the test that should notice it."""


def _digest_of_request(whole: Any, request: Any, _reach: Any) -> str:
    return str(whole(request, None))
