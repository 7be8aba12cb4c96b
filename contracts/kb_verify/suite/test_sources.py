"""Promises on sources: a path in a collection has one document, with the text sent last."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_verify.client import Client, cancelled, fresh_key, note_to_await, problem
from kb_verify.files import FILE

DOCUMENTS: dict[str, Any] = {"tags": ["collection:documents"], "dedup_scope": "collection:documents"}
MEMORY: dict[str, Any] = {"tags": ["collection:memory"], "dedup_scope": "collection:memory"}


def sent(kb: Client, text: str, path: str | None, **body: Any) -> m.Job:
    """Return the completed job of a note in the collection `documents`, or in the one that `body` names."""
    ended = kb.ended(kb.submit(text, **{**DOCUMENTS, "source_path": path, **body}))
    assert ended.status == "completed"
    return ended


def moved(kb: Client, document: int, *, to: str) -> None:
    kb.call(ops.REMOVE_TAG, document, "collection:documents")
    kb.call(ops.ADD_TAGS, document, json={"tags": [to]})


def test_a_source_sent_again_is_replaced(kb: Client) -> None:
    """The same document has another text and a higher version; no mode finds the old text."""
    created = sent(kb, "granite quarry", "a.md", title="Old")
    before = kb.document(created.document_id)
    replaced = sent(kb, "basalt columns", "a.md")
    after = kb.document(before.id)
    assert (created.outcome, replaced.outcome, replaced.deduplicated) == ("created", "replaced", False)
    assert (replaced.document_id, after.uid, after.created_at) == (before.id, before.uid, before.created_at)
    assert after.version > before.version
    assert (after.title, after.size_bytes) == ("basalt columns", len("basalt columns"))
    assert [chunk.text for chunk in after.chunks] == ["basalt columns"]
    assert kb.found("granite") == []
    for mode in ("hybrid", "vector"):
        texts = [each.chunk.text for each in kb.search("granite quarry", mode=mode).results]
        assert "granite quarry" not in texts
    assert kb.found("basalt") == kb.listed() == [before.id]


def test_a_source_sent_again_as_it_was_is_unchanged(kb: Client) -> None:
    first = sent(kb, "granite", "a.md")
    before = kb.document(first.document_id)
    again = sent(kb, "granite", "a.md")
    assert (again.outcome, again.deduplicated, again.left_out) == ("unchanged", True, [])
    assert kb.document(first.document_id) == before


def test_the_same_path_in_another_collection_is_another_source(kb: Client) -> None:
    """Even if both are deduplicated in one scope."""
    one = sent(kb, "granite", "a.md", dedup_scope="")
    two = sent(kb, "basalt", "a.md", tags=["collection:memory"], dedup_scope="")
    three = sent(kb, "granite", "a.md", tags=["collection:memory"], dedup_scope="")
    assert (two.outcome, three.outcome) == ("created", "replaced")
    assert (three.document_id, three.document_id == one.document_id) == (two.document_id, False)
    assert set(kb.found("granite")) == {one.document_id, two.document_id}


def test_two_sources_of_the_same_text_share_a_document(kb: Client) -> None:
    """A source with a new text gets its own document; the other source keeps the shared one unchanged."""
    shared = sent(kb, "granite", "a.md").document_id
    assert sent(kb, "granite", "b.md").document_id == shared
    left = sent(kb, "basalt", "a.md")
    assert left.outcome == "replaced"
    assert left.document_id != shared
    standing = kb.document(shared)
    assert (standing.source_path, standing.source_paths) == ("b.md", ["b.md"])
    assert kb.found("granite") == [shared]
    assert kb.listed(source_path="a.md") == [left.document_id]


def test_a_document_goes_with_its_last_source(kb: Client) -> None:
    """Also if its source comes to share the document of another source."""
    goes = sent(kb, "granite", "a.md").document_id
    stays = sent(kb, "basalt", "b.md").document_id
    replaced = sent(kb, "basalt", "a.md")
    assert (replaced.outcome, replaced.document_id, replaced.deduplicated) == ("replaced", stays, True)
    assert kb.listed() == [stays]
    assert kb.document(stays).source_paths == ["b.md", "a.md"]
    kb.refused("document_not_found", ops.GET_DOCUMENT, goes)
    assert kb.found("granite") == []


def test_without_a_source_path_nothing_is_replaced(kb: Client) -> None:
    """A text that was also submitted without a source path stays when its source gets another one."""
    plain = sent(kb, "granite", "a.md")
    other = sent(kb, "basalt", None)
    assert (plain.outcome, other.outcome) == ("created", "created")
    assert sent(kb, "granite", None).outcome == "unchanged"
    changed = sent(kb, "slate", "a.md")
    assert changed.outcome == "replaced"
    assert kb.found("granite") == [plain.document_id]
    assert kb.document(plain.document_id).source_paths == []
    assert kb.call(ops.LIST_DOCUMENTS).total == 3


def test_a_source_takes_over_a_note_that_has_none(kb: Client) -> None:
    """It can be replaced from then on, like a note first submitted under the path."""
    plain = sent(kb, "granite", None)
    taken = sent(kb, "granite", "a.md")
    assert (taken.outcome, taken.deduplicated, taken.document_id) == ("created", True, plain.document_id)
    replaced = sent(kb, "basalt", "a.md")
    assert (replaced.outcome, replaced.document_id) == ("replaced", plain.document_id)
    assert kb.found("granite") == []
    assert kb.listed() == [plain.document_id]


def test_a_source_moves_with_its_document(kb: Client) -> None:
    """It is replaced in its new collection, and the same text is not duplicated there."""
    document = sent(kb, "granite", "a.md").document_id
    assert document is not None
    moved(kb, document, to="collection:memory")
    again = sent(kb, "granite", "a.md", **MEMORY)
    assert (again.outcome, again.document_id) == ("unchanged", document)
    replaced = sent(kb, "basalt", "a.md", **MEMORY)
    assert (replaced.outcome, replaced.document_id) == ("replaced", document)
    new = sent(kb, "basalt", "a.md")
    assert new.outcome == "created"
    assert new.document_id != document


def test_a_document_taken_out_of_a_second_collection_is_not_doubled_in_the_first(kb: Client) -> None:
    """With the tag of the first added in the same request, or without it."""
    for text, query in (("granite", {}), ("basalt", {"add": "collection:documents"})):
        document = sent(kb, text, None).document_id
        assert document is not None
        kb.call(ops.ADD_TAGS, document, json={"tags": ["collection:memory"]})
        kb.call(ops.REMOVE_TAG, document, "collection:memory", params=query)
        again = sent(kb, text, None)
        assert (again.document_id, again.deduplicated) == (document, True)


def test_of_a_source_that_met_another_by_a_move_one_document_stays(kb: Client) -> None:
    standing = sent(kb, "granite", "a.md", **MEMORY).document_id
    arrived = sent(kb, "basalt", "a.md").document_id
    assert arrived is not None
    moved(kb, arrived, to="collection:memory")
    replaced = sent(kb, "slate", "a.md", **MEMORY)
    assert (replaced.outcome, kb.listed()) == ("replaced", [standing])
    assert kb.found("granite basalt") == []


def test_a_note_becomes_a_file_under_its_source_path(kb: Client) -> None:
    note = sent(kb, "granite", "a.md").document_id
    ended = kb.ended(kb.send("a.md", b"basalt", None, source_path="a.md", **FILE))
    assert (ended.outcome, ended.document_id) == ("replaced", note)
    document = kb.document(note)
    assert (document.doc_type, document.filename) == ("markdown", "a.md")
    assert note is not None
    problem(kb.patch(note, text="slate"), "not_a_note")
    sent(kb, "slate", "a.md")
    assert kb.patched(note, text="chalk").doc_type == "note"
    assert kb.found("basalt slate") == []


def test_a_source_is_taken_off_and_its_document_goes_with_the_last(kb: Client) -> None:
    shared = sent(kb, "granite", "a.md").document_id
    sent(kb, "granite", "b.md")
    before = kb.document(shared)
    left = kb.call(ops.REMOVE_SOURCE, shared, params={"source_path": "a.md"})
    assert (left.documents, left.chunks, left.bytes) == (0, 0, 0)
    after = kb.document(shared)
    assert (after.source_path, after.source_paths) == ("b.md", ["b.md"])
    assert after.version > before.version
    assert kb.found("granite") == [shared]
    gone = kb.call(ops.REMOVE_SOURCE, before.uid, params={"source_path": "b.md"})
    assert (gone.documents, gone.chunks, gone.bytes) == (1, 1, len("granite"))
    kb.refused("document_not_found", ops.GET_DOCUMENT, shared)
    assert kb.found("granite") == []


def test_what_was_also_submitted_without_a_source_outlives_the_last(kb: Client) -> None:
    document = sent(kb, "granite", "a.md").document_id
    sent(kb, "granite", None)
    assert kb.call(ops.REMOVE_SOURCE, document, params={"source_path": "a.md"}).documents == 0
    after = kb.document(document)
    assert (after.source_path, after.source_paths) == (None, [])


def test_a_file_that_was_submitted_without_a_source_is_not_taken_over(kb: Client) -> None:
    """The file was sent for itself, and remains when a folder that also holds it loses it."""
    document = kb.ended(kb.send("a.md", b"basalt", None, **FILE)).document_id
    assert kb.ended(kb.send("a.md", b"basalt", None, source_path="a.md", **FILE)).document_id == document
    assert kb.call(ops.REMOVE_SOURCE, document, params={"source_path": "a.md"}).documents == 0


def test_a_source_that_cannot_be_taken_off_stays(kb: Client) -> None:
    """The document does not come from it, or has changed since it was read."""
    document = sent(kb, "granite", "a.md").document_id
    changed = kb.call(ops.ADD_TAGS, document, json={"tags": ["x"]})
    path = {"source_path": "a.md"}
    kb.refused("source_not_found", ops.REMOVE_SOURCE, document, params={"source_path": "b.md"})
    kb.refused("document_not_found", ops.REMOVE_SOURCE, 2**62, params=path)
    kb.refused("missing_parameter", ops.REMOVE_SOURCE, document)
    stale = {"If-Match": f'"{changed.version - 1}"'}
    kb.refused("version_conflict", ops.REMOVE_SOURCE, document, params=path, headers=stale)
    assert kb.document(document) == kb.document(changed.uid)
    assert kb.listed(source_path="a.md") == [document]


def test_a_retried_removal_of_a_source_answers_as_it_did(kb: Client) -> None:
    document = sent(kb, "granite", "a.md").document_id
    request = {"params": {"source_path": "a.md"}, "headers": fresh_key()}
    first, again = (kb.call(ops.REMOVE_SOURCE, document, **request) for _ in range(2))
    assert first == again
    assert first.documents == 1


def test_documents_are_listed_by_how_their_sources_begin(kb: Client) -> None:
    """Also by a further source path; a prefix is not a pattern."""
    one = sent(kb, "granite", "x/a.md").document_id
    two = sent(kb, "basalt", "x/b%.md").document_id
    sent(kb, "slate", "y/c.md")
    sent(kb, "granite", "z/a.md")
    sent(kb, "chalk", None)
    assert sorted(kb.listed(source_path_prefix="x/")) == [one, two]
    assert kb.listed(source_path_prefix="z/") == [one]
    assert kb.listed(source_path_prefix="x/b%") == [two]
    assert kb.listed(source_path_prefix="%") == []
    assert kb.listed(source_path_prefix="x/", doc_type="pdf") == []


def test_the_longest_source_path_can_be_listed_and_taken_off(kb: Client) -> None:
    """In a URL it has 12,000 bytes."""
    path = "\N{HONEYBEE}" * 1_000
    document = sent(kb, "granite", path).document_id
    assert kb.listed(source_path=path, source_path_prefix=path) == [document]
    assert kb.call(ops.REMOVE_SOURCE, document, params={"source_path": path}).documents == 1


def test_of_submissions_of_a_source_the_last_accepted_stays(kb: Client) -> None:
    """Independent of their durations: a long one does not overwrite a later short one."""
    texts = (note_to_await(1), note_to_await(2), "granite")
    jobs = [kb.submit(text, **DOCUMENTS, source_path="a.md") for text in texts]
    ended = [kb.ended(job) for job in jobs]
    assert [job.outcome for job in ended] == ["created", "replaced", "replaced"]
    assert len({job.document_id for job in ended}) == 1
    document = kb.document(ended[0].document_id)
    assert [chunk.text for chunk in document.chunks] == ["granite"]


def test_what_was_not_taken_is_named(kb: Client) -> None:
    """A duplicate keeps its own title and metadata, and takes no tags beyond the maximum."""
    tags = [*DOCUMENTS["tags"], *(f"t{number}" for number in range(m.MAX_TAGS - 2))]
    first = sent(kb, "granite", "a.md", title="One", tags=tags, metadata={"k": 1})
    further = [*DOCUMENTS["tags"], "x", "y"]
    again = sent(kb, "granite", "b.md", title="Two", tags=further, metadata={"k": 2})
    assert first.left_out == []
    assert sorted(again.left_out or []) == ["metadata", "tags", "title"]
    document = kb.document(again.document_id)
    assert (document.title, document.metadata, len(document.tags)) == ("One", {"k": 1}, m.MAX_TAGS)
    assert document.source_paths == ["a.md", "b.md"]


def test_a_replaced_document_keeps_what_was_not_sent(kb: Client) -> None:
    """Tags are merged; metadata are replaced if the request has any."""
    sent(kb, "granite", "a.md", metadata={"k": 1}, tags=[*DOCUMENTS["tags"], "old"])
    kept = kb.document(sent(kb, "basalt", "a.md").document_id)
    assert (sorted(kept.tags), kept.metadata) == (["collection:documents", "old"], {"k": 1})
    job = sent(kb, "slate", "a.md", metadata={"k": 2}, tags=[*DOCUMENTS["tags"], "new"])
    changed = kb.document(job.document_id)
    assert (sorted(changed.tags), changed.metadata) == (["collection:documents", "new", "old"], {"k": 2})
    assert job.left_out == []


def test_a_job_that_was_cancelled_has_no_outcome(kb: Client) -> None:
    job = cancelled(kb)
    assert (job.outcome, job.left_out) == (UNSET, UNSET)
