"""Refusals before queueing, titles of notes, deduplication of submissions, and the life of a job."""

from __future__ import annotations

import sys
from typing import get_args

import pytest

from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import FORMATS
from kb_contracts.api.models import (
    FINAL_STATUSES,
    MAX_INTEGER,
    MAX_TAGS,
    FileFields,
    JobStatus,
    NotePatch,
    NoteRequest,
)
from kb_contracts.semantics.documents import (
    WHITE_SPACE,
    check_note_text,
    check_ocr,
    check_patch,
    check_tags_fit,
    document_key,
    note_hash,
    note_title,
    tags_to_unite,
    text_digest,
    title_after_update,
)
from kb_contracts.semantics.jobs import (
    TRANSITIONS,
    Event,
    Origin,
    may_succeed_again,
    open_failures,
    sources,
    target,
)


def test_a_title_without_a_visible_character_counts_as_left_out() -> None:
    kept = (" a ", "\u200fא", "👩\u200d💻", "\ue000")
    blank = (" \n", "\u00a0\u3000", "\u200b\u2060\ufeff", "\u200f\u202e", "\x1c\x85")
    for title, read in [*((each, each) for each in kept), *((each, None) for each in blank)]:
        patch = NotePatch(title=title)
        assert [patch.title, NoteRequest(text="a", title=title).title, FileFields(title=title).title] == [
            read
        ] * 3


@pytest.mark.parametrize("text", ["", " \n\t", "\u00a0\u2003", "\u200b\n\u200b"])
def test_a_note_without_a_visible_character_is_refused(text: str) -> None:
    with pytest.raises(EngineError, match="no visible character"):
        check_note_text(text)
    with pytest.raises(EngineError, match="no visible character"):
        check_patch(NotePatch(text=text))


def test_a_patch_changes_something() -> None:
    check_patch(NotePatch(title="Bees"))
    with pytest.raises(EngineError) as refused:
        check_patch(NotePatch())
    assert refused.value.code == "missing_parameter"


def test_tags_are_added_up_to_as_many_as_a_document_may_have() -> None:
    """A document with more tags, from before the limit existed, keeps them."""
    present = [f"t{number}" for number in range(MAX_TAGS - 1)]
    check_tags_fit(present, ["x", "x", "t0"])
    check_tags_fit([*present, "x", "y"], ["y"])
    for tags, further in ((present, ["x", "y"]), ([*present, "x", "y"], ["z"])):
        with pytest.raises(EngineError, match=f"maximum is {MAX_TAGS}"):
            check_tags_fit(tags, further)


@pytest.mark.parametrize("name", FORMATS)
def test_ocr_is_forced_where_there_is_something_to_look_at(name: str) -> None:
    check_ocr(FileFields(), FORMATS[name])
    if FORMATS[name].takes_ocr:
        check_ocr(FileFields(force_ocr=True), FORMATS[name])
    else:
        with pytest.raises(EngineError, match="PDF, JPG, PNG"):
            check_ocr(FileFields(force_ocr=True), FORMATS[name])


def test_a_key_is_a_number_or_a_uid() -> None:
    uid = "964e0c5d-3fcb-54d9-9ca7-93a92ef721e3"
    assert (document_key("42"), document_key(uid)) == (42, uid)
    with pytest.raises(EngineError) as missing:
        document_key(str(MAX_INTEGER + 1))
    assert missing.value.code == "document_not_found"


def test_a_note_of_half_a_surrogate_pair_has_a_digest() -> None:
    assert text_digest("\ud800")[1] == 3


def test_notes_differ_by_more_than_trailing_white_space() -> None:
    blanks = "".join(char for char in map(chr, range(sys.maxunicode + 1)) if char.isspace())
    assert set(blanks) == set(WHITE_SPACE)
    assert note_hash(f"granite{blanks}") == note_hash("granite") == text_digest("granite")[0]
    assert len({note_hash(text) for text in ("granite", " granite", "gran ite", "Granite")}) == 4


def test_a_document_stays_in_its_collection() -> None:
    present = ["collection:a", "x"]
    assert tags_to_unite(present, ["collection:b", "x", "y", "y"]) == ["y"]
    assert tags_to_unite(["x"], ["y", "collection:b", "collection:c", "z"]) == ["y", "collection:b", "z"]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("granite", "granite"),
        ("\n \n  a\tb  c \nd", "a b c"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 79 + "…"),
        ("\x1c\u2028granite", "granite"),
        ("\u200b\ngranite", "granite"),
        ("\n ##  Stones # \n", "Stones #"),
        ("#stones", "#stones"),
        ("# #", "# #"),
    ],
)
def test_a_note_is_called_by_its_first_line(text: str, title: str) -> None:
    assert note_title(text) == title


def test_a_title_that_was_given_stays_when_the_text_changes() -> None:
    assert title_after_update("Mine", "Old text", "New text") == "Mine"
    assert title_after_update("Old text", "Old text", "\n  New   text\nmore") == "New text"
    assert title_after_update("# Old", "# Old\ntext", "# New\ntext") == "New"


def test_every_state_of_the_contract_is_reached_or_is_the_first() -> None:
    assert {"queued", *TRANSITIONS.values()} == set(get_args(JobStatus))


@pytest.mark.parametrize("status", sorted(FINAL_STATUSES))
@pytest.mark.parametrize("event", Event)
def test_a_final_state_is_left_only_by_retrying_a_failed_job(status: JobStatus, event: Event) -> None:
    assert TRANSITIONS.get((status, event)) == (
        "queued" if (status, event) == ("failed", Event.RETRY) else None
    )


@pytest.mark.parametrize("event", Event)
def test_an_event_leads_from_its_sources_to_its_target(event: Event) -> None:
    assert {TRANSITIONS[status, event] for status in sources(event)} == {target(event)}


def test_only_a_running_job_completes() -> None:
    assert sources(Event.COMPLETE) == ("running",)


def test_an_update_refused_for_its_version_is_no_open_failure() -> None:
    note = Origin(None, None, None, "")
    assert open_failures([("failed", "version_conflict", note), ("failed", "internal", note)]) == 1


def test_a_job_that_expected_a_version_is_not_retryable_after_a_conflict() -> None:
    """A note whose text came from its source meanwhile may be retried, because no version was expected."""
    assert not may_succeed_again("version_conflict", 3)
    assert may_succeed_again("version_conflict", None)
    assert may_succeed_again("embedder_unavailable", 3)
