"""Promises on callers with limited rights or a limited access scope (`X-KB-Access`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from kb_contracts.access.reach import ACCESS, RIGHTS, Access, Reach, Right, access_header
from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import Problem
from kb_verify.client import Client, decode, fresh_key, problem

CallerOf = Callable[[Access], Client]

MINE, THEIRS = "collection:mine", "collection:theirs"
REACH = Reach(frozenset([MINE]))
ABSENT = "00000000-0000-4000-8000-00000000ffff"
NUMBER = 9_000_000
REACHING = {"a name": REACH, "a prefix": Reach(prefixes=frozenset(["collection:mi"]))}
each_reach = pytest.mark.parametrize("reach", REACHING.values(), ids=REACHING.keys())
each_protected = pytest.mark.parametrize(
    "operation", [each for each in ops.OPERATIONS if not each.public], ids=lambda each: each.id
)
VALUES = {"document_id": "1", "job_id": ABSENT, "version": "1", "tag": "a", "collection_id": ABSENT}


def sent(kb: Client, operation: ops.AnyOperation, headers: dict[str, str]) -> httpx.Response:
    """Return the response to an operation on missing resources, with an invalid body."""
    body: dict[str, Any] = {} if operation.body is None else {"json": {}}
    path = [VALUES[name] for name in operation.path_parameters]
    return kb.request(operation, *path, headers=headers, **body)


def on_a_document(caller: Client, number: int, uid: str) -> list[Problem]:
    """Return the response of each operation on a document, by number and by uid."""
    answers = []
    for key in (number, uid):
        for operation, path, request in (
            (ops.GET_DOCUMENT, [], {}),
            (ops.GET_ORIGINAL, [], {}),
            (ops.GET_PICTURE, [], {"params": {"chunk": 0}}),
            (ops.LIST_VERSIONS, [], {}),
            (ops.GET_VERSION, [1], {}),
            (ops.RESTORE_VERSION, [1], {}),
            (ops.PURGE_VERSIONS, [], {}),
            (ops.SET_METADATA, [], {"json": {"metadata": {"a": 1}}}),
            (ops.GIVE_FEEDBACK, [], {"json": {"signal": "useful"}}),
            (ops.ADD_TAGS, [], {"json": {"tags": [MINE]}}),
            (ops.REMOVE_TAG, ["x"], {}),
            (ops.REMOVE_SOURCE, [], {"params": {"source_path": "a"}}),
            (ops.DELETE_DOCUMENT, [], {}),
        ):
            answers.append(caller.refused("document_not_found", operation, key, *path, **request))
    note = caller.request(ops.PATCH_NOTE, number, json={"text": "overwritten"})
    return [*answers, problem(note, "document_not_found")]


def details(found: list[Problem], *names: object) -> list[str]:
    """Return the details of the problems, without the names in the requests."""
    texts = []
    for each in found:
        text = each.detail
        for name in names:
            text = text.replace(str(name), "it")
        texts.append(text)
    return texts


@each_protected
def test_a_right_that_is_missing_is_refused(caller_of: CallerOf, operation: ops.AnyOperation) -> None:
    """The right is checked before the rest of the request; with it the request is validated as usual."""
    others: frozenset[Right] = RIGHTS - {operation.right}
    problem(sent(caller_of(Access(rights=others)), operation, {}), "forbidden")
    allowed = sent(caller_of(Access(rights=frozenset([operation.right]))), operation, {})
    assert allowed.status_code != 403


@pytest.mark.requirement("R45", "R47", "R49")
@each_protected
def test_the_role_service_reads_and_no_more(
    kb: Client, caller_of: CallerOf, operation: ops.AnyOperation
) -> None:
    """On every route, in any spelling; the role reduces the rights of a key, and never extends them."""
    for role in ("service", "Service", "editor, SERVICE"):
        response = sent(kb, operation, {r.USER_ROLE: role})
        if operation.right == "read":
            assert response.status_code != 403
        else:
            assert problem(response, "forbidden").parameter == r.USER_ROLE
    nothing = caller_of(Access(rights=frozenset()))
    problem(sent(nothing, operation, {r.USER_ROLE: "editor"}), "forbidden")


@pytest.mark.parametrize("value", ["", "x", "[]", '{"rights": ["own"]}', '{"reach": 1}', '{"other": 1}'])
@pytest.mark.usefixtures("caller_of")
def test_a_header_that_does_not_fit_is_refused(kb: Client, value: str) -> None:
    kb.refused("invalid_parameter", ops.LIST_DOCUMENTS, headers={ACCESS: value}, parameter=ACCESS)


@pytest.mark.usefixtures("caller_of")
def test_a_header_that_comes_twice_is_refused(kb: Client) -> None:
    """A repeated header is refused, with the narrow or the wide access first."""
    narrow = access_header(Access("a", reach=REACH))
    for two in ([narrow, "{}"], ["{}", narrow], [f"{narrow}, {{}}"]):
        response = kb.http.get(ops.LIST_DOCUMENTS.path, headers=[(ACCESS, each) for each in two])
        problem(response, "invalid_parameter")


@each_reach
def test_a_document_out_of_reach_is_not_there(kb: Client, caller_of: CallerOf, reach: Reach) -> None:
    """Operations respond as for an id that never existed, by number and uid, and have no effect."""
    hidden = kb.stored_note("granite quarry", tags=[THEIRS], source_path="a")
    kb.patched(hidden.id, text="granite quarries")
    before = kb.document(hidden.id)
    caller = caller_of(Access("a", reach=reach))
    there = on_a_document(caller, hidden.id, hidden.uid)
    never = on_a_document(caller, NUMBER, ABSENT)
    assert details(there, hidden.uid, hidden.id) == details(never, ABSENT, NUMBER)
    assert kb.document(hidden.id) == before


@each_reach
def test_a_removed_document_out_of_reach_is_not_there(kb: Client, caller_of: CallerOf, reach: Reach) -> None:
    hidden = kb.stored_note("granite quarry", tags=[THEIRS])
    kb.call(ops.DELETE_DOCUMENT, hidden.id)
    caller = caller_of(Access("a", reach=reach))
    on_a_document(caller, hidden.id, hidden.uid)
    assert caller.call(ops.LIST_TRASH).total == 0
    assert kb.call(ops.LIST_TRASH).total == 1
    assert kb.call(ops.RESTORE_VERSION, hidden.id, 1).uid == hidden.uid


def test_what_was_kept_of_another_collection_stays_out_of_reach(kb: Client, caller_of: CallerOf) -> None:
    """A document that is moved into the scope hides its versions from outside the scope."""
    document = kb.note("first", tags=[THEIRS])
    kb.patched(document, text="second")
    kb.call(ops.REMOVE_TAG, document, THEIRS)
    kb.call(ops.ADD_TAGS, document, json={"tags": [MINE]})
    kb.patched(document, text="third")
    caller = caller_of(Access("a", reach=REACH))
    seen = caller.call(ops.LIST_VERSIONS, document)
    assert [each.tags for each in seen.versions] == [[MINE]]
    assert seen.total == 1
    caller.refused("version_not_found", ops.GET_VERSION, document, 1)
    caller.refused("version_not_found", ops.RESTORE_VERSION, document, 1)
    assert kb.call(ops.LIST_VERSIONS, document).total == 2


@each_reach
def test_what_is_listed_and_counted_is_within_reach(kb: Client, caller_of: CallerOf, reach: Reach) -> None:
    """Documents, sources, tags, jobs and the status."""
    mine = kb.note("granite", tags=[MINE, "shared"], source_path="a.md", dedup_scope=MINE)
    kb.note("basalt", tags=[THEIRS, "shared", "secret"], source_path="a.md", dedup_scope=THEIRS)
    kb.note("marble of nobody")
    caller = caller_of(Access("a", reach=reach))
    assert caller.listed() == caller.listed(source_path="a.md") == caller.listed(tag="shared") == [mine]
    assert caller.listed(source_path_prefix="a") == [mine]
    assert caller.listed(tag=THEIRS) == []
    tags = caller.call(ops.LIST_TAGS)
    assert [(each.tag, each.documents) for each in tags.tags] == [(MINE, 1), ("shared", 1)]
    assert tags.total == 2
    jobs = caller.call(ops.LIST_JOBS, params={"limit": 1_000}).jobs
    assert mine in {each.document_id for each in jobs}
    assert [each for each in jobs if not reach.admits(each.tags)] == []
    status = caller.call(ops.GET_STATUS)
    assert (status.documents.total, status.chunks) == (1, 1)
    assert status.queue.completed == len([each for each in jobs if each.status == "completed"])
    assert (status.storage.path, status.storage.bytes, status.storage.free_bytes) == ("", 0, 0)
    reader = caller_of(Access("b", frozenset(["read"])))
    assert reader.call(ops.GET_STATUS).storage.is_withheld
    assert reader.call(ops.GET_STATUS).documents.total == 3
    for seen, documents in ((caller, 1), (reader, 3)):
        if (history := seen.history()) is not None:
            assert history.growth[-1].documents == documents
            assert (history.questions, history.unanswered) == (msgspec.UNSET, msgspec.UNSET)


@each_reach
@pytest.mark.parametrize("mode", ["hybrid", "fts", "vector"])
def test_a_search_knows_nothing_of_what_is_out_of_reach(
    kb: Client, caller_of: CallerOf, reach: Reach, mode: m.Mode
) -> None:
    """Results, scores and totals are those of a base without the documents outside the scope."""
    kb.note("granite quarry in the north", tags=[MINE])
    kb.note("granite of the south, and a longer passage about rivers", tags=[MINE])
    caller = caller_of(Access("a", reach=reach))

    def answer() -> m.SearchResponse:
        found = caller.search("granite quarry", mode=mode, explain=True, top=10)
        found.took_ms = 0.0
        return found

    alone = answer()
    assert len(alone.results) == 2
    for number in range(4):
        kb.note(f"granite granite quarry {number}", tags=[THEIRS])
    assert answer() == alone
    assert caller.search("granite", mode=mode, tags=[THEIRS]).results == []


@pytest.mark.usefixtures("ragler")
@pytest.mark.requirement("R47")
def test_collections_out_of_reach_are_not_there(kb: Client, caller_of: CallerOf) -> None:
    """In use or described; in searches, lists, reads and descriptions."""
    kb.note("granite", tags=[MINE])
    kb.note("granite too", tags=[THEIRS])
    theirs, empty = r.collection_id("theirs"), r.collection_id("empty")
    kb.saved_collection(empty, "empty", description="hidden")
    caller = caller_of(Access("a", reach=REACH))
    assert list(caller.collections()) == ["mine"]
    for hidden in (theirs, empty, r.collection_id("never")):
        caller.refused("collection_not_found", ops.GET_COLLECTION, hidden)
        request = {"query": "granite", "collectionId": hidden}
        caller.refused("collection_not_found", ops.VECTOR_SEARCH, json=request)
    for name in ("theirs", "empty", "never"):
        request = {"query": "granite", "collectionName": name}
        caller.refused("collection_not_found", ops.VECTOR_SEARCH, json=request)
        problem(caller.put_collection(r.collection_id(name), name), "forbidden")
    assert len(caller.vector("granite").results) == 1
    assert caller.saved_collection(r.collection_id("mine"), "mine", description="a").description == "a"


@pytest.mark.usefixtures("ragler")
def test_an_id_does_not_show_whether_it_is_taken(kb: Client, caller_of: CallerOf) -> None:
    """A limited scope permits only a name's default id; the refusal is the same for all others."""
    free, taken = "5ae2f1f0-7d0c-4f44-9d3c-0f2e8f3b7a11", "6be2f1f0-7d0c-4f44-9d3c-0f2e8f3b7a11"
    kb.saved_collection(taken, "theirs")
    caller = caller_of(Access("a", reach=REACH))
    one, other = (problem(caller.put_collection(id_, "mine"), "forbidden") for id_ in (free, taken))
    assert one.detail == other.detail
    assert kb.call(ops.GET_COLLECTION, taken).name == "theirs"


def test_a_submission_needs_a_tag_within_reach(kb: Client, caller_of: CallerOf) -> None:
    caller = caller_of(Access("a", reach=REACH))
    with kb.adding_jobs(0):
        for tags in ([], ["shared"], [THEIRS], [MINE, THEIRS]):
            response = caller.request(ops.CREATE_JOB, json={"text": "granite", "tags": tags})
            assert problem(response, "forbidden").parameter == "tags"
        file = {"file": ("a.md", b"granite")}
        caller.refused("forbidden", ops.CREATE_JOB, files=file, data={"tags": f'["{THEIRS}"]'})
    assert kb.document(caller.note("granite", tags=[MINE, "shared"])).tags == [MINE, "shared"]


@pytest.mark.parametrize("scope", ["", "free", THEIRS])
def test_nothing_out_of_reach_is_a_duplicate(kb: Client, caller_of: CallerOf, scope: str) -> None:
    """Independent of the `dedup_scope`."""
    theirs = kb.note("granite", tags=[THEIRS], dedup_scope=scope)
    caller = caller_of(Access("a", reach=REACH))
    job = caller.ended(caller.submit("granite", tags=[MINE], dedup_scope=scope))
    assert not job.deduplicated
    assert job.document_id != theirs
    assert kb.document(theirs).version == 1
    again = caller.ended(caller.submit("granite", tags=[MINE], dedup_scope=scope))
    assert (again.deduplicated, again.document_id) == (True, job.document_id)


def test_notes_out_of_reach_are_not_similar(kb: Client, caller_of: CallerOf) -> None:
    kb.note("granite", tags=[THEIRS], dedup_scope=THEIRS)
    caller = caller_of(Access("a", reach=REACH))
    note = caller.note("granite", tags=[MINE])
    assert caller.document(note, similar=3).similar == []


def test_nothing_out_of_reach_is_replaced(kb: Client, caller_of: CallerOf) -> None:
    """A document outside the scope is not replaced, even by the same source path and `dedup_scope`."""
    team, teams = Reach(frozenset(["team"])), ["teams"]
    theirs = kb.note("granite", tags=teams, source_path="a.md", dedup_scope="free")
    caller = caller_of(Access("a", reach=team))
    job = caller.ended(caller.submit("basalt", tags=["team"], source_path="a.md", dedup_scope="free"))
    assert (job.outcome, job.document_id == theirs) == ("created", False)
    assert kb.document(theirs).source_paths == ["a.md"]


def test_jobs_out_of_reach_are_not_there(kb: Client, caller_of: CallerOf) -> None:
    caller = caller_of(Access("a", reach=REACH))
    failed = kb.ended(kb.send("a.pdf", b"%PDF-1.4 nothing", tags=f'["{THEIRS}"]'))
    for job in (failed.id, ABSENT):
        for operation in (ops.GET_JOB, ops.CANCEL_JOB, ops.RETRY_JOB):
            caller.refused("job_not_found", operation, job)
    own = caller.ended(caller.send("a.pdf", b"%PDF-1.4 nothing", tags=f'["{MINE}"]'))
    assert caller.call(ops.GET_JOB, own.id).id == own.id


def test_the_job_of_a_document_goes_where_that_goes(kb: Client, caller_of: CallerOf) -> None:
    """The job of a document outside the scope does not reveal the document."""
    job = kb.ended(kb.submit("granite", tags=[MINE]))
    caller = caller_of(Access("a", reach=REACH))
    assert caller.call(ops.GET_JOB, job.id).document_id == job.document_id
    kb.call(ops.REMOVE_TAG, job.document_id, MINE)
    caller.refused("job_not_found", ops.GET_JOB, job.id)
    kb.call(ops.DELETE_DOCUMENT, job.document_id)
    caller.refused("job_not_found", ops.GET_JOB, job.id)


def test_collections_are_given_and_taken_within_reach(kb: Client, caller_of: CallerOf) -> None:
    """Other tags can be changed freely; a document cannot be moved out of the caller's scope."""
    document = kb.note("granite", tags=[MINE, "old"])
    caller = caller_of(Access("a", reach=REACH))
    caller.refused("forbidden", ops.ADD_TAGS, document, json={"tags": ["new", THEIRS]})
    caller.refused("forbidden", ops.REMOVE_TAG, document, MINE)
    caller.refused("forbidden", ops.REMOVE_TAG, document, THEIRS)
    caller.refused("forbidden", ops.REMOVE_TAG, document, MINE, params={"add": THEIRS})
    caller.call(ops.ADD_TAGS, document, json={"tags": ["new"]})
    caller.call(ops.REMOVE_TAG, document, "old")
    assert kb.document(document).tags == [MINE, "new"]


def test_a_document_is_moved_by_who_reaches_both_ends(kb: Client, caller_of: CallerOf) -> None:
    """Removing the old tag and adding the new one are two changes; the state between is never visible."""
    before = kb.stored_note("granite", tags=[MINE, "kept"], dedup_scope=MINE, source_path="a.md")
    mover = caller_of(Access("a", reach=Reach(frozenset([MINE, THEIRS]))))
    moved = mover.call(ops.REMOVE_TAG, before.id, MINE, params={"add": THEIRS})
    assert (moved.tags, moved.version) == (["kept", THEIRS], before.version + 2)
    caller_of(Access("b", reach=REACH)).refused("document_not_found", ops.GET_DOCUMENT, before.id)
    again = kb.ended(kb.submit("granite", tags=[THEIRS], dedup_scope=THEIRS, source_path="a.md"))
    assert (again.document_id, again.deduplicated) == (before.id, True)


def test_whoever_reaches_a_part_does_not_clear_the_whole(kb: Client, caller_of: CallerOf) -> None:
    document = kb.note("granite", tags=[MINE])
    caller_of(Access("a", reach=REACH)).refused("forbidden", ops.CLEAR_DOCUMENTS, params={"confirm": "true"})
    assert kb.listed() == [document]


def test_an_idempotency_key_is_one_callers(kb: Client, caller_of: CallerOf) -> None:
    """A caller neither gets another caller's response under the same key, nor learns of its request."""
    key, body = fresh_key(), {"text": "granite", "tags": [MINE]}
    callers = [
        kb,
        caller_of(Access("a", reach=REACH)),
        caller_of(Access("b", reach=REACH)),
        caller_of(Access("a", reach=Reach(frozenset([MINE, THEIRS])))),
    ]
    jobs = [each.call(ops.CREATE_JOB, json=body, headers=key).id for each in callers]
    assert len(set(jobs)) == len(jobs)
    for caller, job in zip(callers, jobs, strict=True):
        assert caller.call(ops.CREATE_JOB, json=body, headers=key).id == job
        caller.refused("idempotency_mismatch", ops.CREATE_JOB, json={**body, "text": "x"}, headers=key)


def test_a_cursor_is_of_one_reach(kb: Client, caller_of: CallerOf) -> None:
    for number in range(3):
        kb.note(f"granite {number}", tags=[MINE])
    request: dict[str, Any] = {"query": "granite", "top": 1, "pages": True}
    caller = caller_of(Access("a", reach=REACH))
    theirs, own = (each.search(**request).next_cursor for each in (kb, caller))
    caller.refused("page_not_found", ops.SEARCH, json={**request, "cursor": theirs})
    kb.refused("page_not_found", ops.SEARCH, json={**request, "cursor": own})
    assert len(caller.search(**request, cursor=own).results) == 1
    assert len(caller_of(Access("b", reach=REACH)).search(**request, cursor=own).results) == 1


def test_what_has_gone_out_of_reach_is_on_no_later_page(kb: Client, caller_of: CallerOf) -> None:
    documents = [kb.note(f"granite {number}", tags=[MINE]) for number in range(3)]
    caller = caller_of(Access("a", reach=REACH))
    request: dict[str, Any] = {"query": "granite", "top": 1, "pages": True}
    first = caller.search(**request)
    for document in documents:
        kb.call(ops.REMOVE_TAG, document, MINE)
    assert caller.search(**request, cursor=first.next_cursor).results == []


def test_a_citation_out_of_reach_is_gone(kb: Client, caller_of: CallerOf) -> None:
    kb.note("granite quarry", tags=[THEIRS])
    (found,) = kb.search("granite", mode="fts", citations=True).results
    citation = msgspec.to_builtins(found.citation)
    assert kb.call(ops.CHECK_CITATION, json=citation).status == "there"
    seen = caller_of(Access("a", reach=REACH)).call(ops.CHECK_CITATION, json=citation)
    assert (seen.status, seen.document_id, seen.text) == ("gone", None, None)


def test_feedback_is_each_callers_own(kb: Client, caller_of: CallerOf) -> None:
    """Two keys are two voices, even with the same user."""
    document = kb.note("granite", tags=[MINE])
    user = {r.USER_ID: "same"}
    for name in ("a", "b", "a"):
        caller = caller_of(Access(name, reach=REACH))
        response = caller.request(ops.GIVE_FEEDBACK, document, json={"signal": "useful"}, headers=user)
        given = decode(response, m.Feedback)
    assert given.useful == 2
