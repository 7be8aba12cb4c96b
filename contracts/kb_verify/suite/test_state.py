"""Promises on `/status` and the probes."""

from __future__ import annotations

import msgspec
import pytest

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_verify.client import Client


@pytest.mark.requirement("E33")
def test_the_version_is_v3_0_0_or_later(kb: Client) -> None:
    """The minimum version that the server requires: major, minor and patch after a v."""
    version = kb.call(ops.GET_STATUS).version
    assert version.startswith("v")
    assert tuple(int(part) for part in version[1:].split("-")[0].split(".")) >= (3, 0, 0)


@pytest.mark.requirement("K52")
def test_status_counts_documents_by_state_and_type(kb: Client) -> None:
    empty = kb.call(ops.GET_STATUS)
    assert (empty.documents.total, empty.chunks, empty.storage.originals_bytes) == (0, 0, 0)
    kb.note("granite")
    kb.file("a.md", b"# basalt")
    kb.file("b.txt", b"")
    status = kb.call(ops.GET_STATUS)
    counts = status.documents
    assert (counts.total, counts.searchable, counts.empty) == (3, 2, 1)
    assert {kind: count for kind, count in counts.by_type.items() if count} == {
        "note": 1,
        "markdown": 1,
        "text": 1,
    }
    assert status.chunks == 2
    assert status.storage.originals_bytes == len("granite" + "# basalt")


@pytest.mark.requirement("K52")
def test_status_counts_jobs_by_state(kb: Client) -> None:
    before = kb.call(ops.GET_STATUS).queue
    kb.ended(kb.submit("granite"))
    kb.ended(kb.send("a.txt", b"\xff\xfe\xfd"))
    after = kb.call(ops.GET_STATUS).queue
    assert (after.completed - before.completed, after.failed - before.failed) == (1, 1)
    assert (after.queued, after.running) == (0, 0)


@pytest.mark.requirement("K52")
def test_a_failed_job_is_open_until_its_source_succeeds(kb: Client) -> None:
    """An engine may omit the number."""
    if kb.call(ops.GET_STATUS).open_failures is msgspec.UNSET:
        pytest.skip("the engine does not count open failures")
    before = kb.call(ops.GET_STATUS).failures
    counts = []
    for name, content, source in (
        ("failed.txt", b"\xff\xfe\xfd", {}),
        ("under-a-path.txt", b"\xff\xfe\xfd", {"source_path": "/under/a/path"}),
        ("under-a-path.txt", b"granite", {}),  # without the path: another source
        ("under-a-path.txt", b"basalt", {"source_path": "/under/a/path"}),
        ("failed.txt", b"gneiss", {}),
    ):
        kb.ended(kb.send(name, content, None, **source))
        counts.append(kb.call(ops.GET_STATUS).failures - before)
    assert counts == [1, 2, 2, 1, 0]


def test_history_counts_documents_and_unanswered_questions(kb: Client, pytestconfig: pytest.Config) -> None:
    """An engine may omit the history, and in it the questions; other pages of an answer are no questions.

    Of several engines, each knows the latest questions that it answered itself, so only one can be compared.
    """
    kb.note("granite")
    kb.note("granite and basalt")
    before = history_of(kb)
    page = kb.search("granite", mode="fts", top=1, pages=True)
    kb.search("granite", mode="fts", top=1, pages=True, cursor=page.next_cursor)
    kb.search("granite", mode="fts", detail="locations")
    kb.search("obsidian", mode="fts")
    after = history_of(kb)
    assert (after.growth[-1].documents, after.growth[-1].chunks) == (2, 2)
    if "," in str(pytestconfig.getoption("--kb-url")):
        return
    if after.questions is msgspec.UNSET or before.questions is msgspec.UNSET:
        pytest.skip("the engine does not count questions")
    counts = [
        (sum(day.total for day in days), sum(day.unanswered for day in days))
        for days in (before.questions, after.questions)
    ]
    assert (counts[1][0] - counts[0][0], counts[1][1] - counts[0][1]) == (2, 1)


def history_of(kb: Client) -> m.History:
    return kb.history() or pytest.skip("the engine has no history")


@pytest.mark.requirement("K52")
def test_status_tells_model_device_and_storage(kb: Client) -> None:
    kb.note("granite")
    status = kb.call(ops.GET_STATUS)
    assert status.model.name
    assert status.model.dimensions > 0
    assert status.model.max_tokens > 0
    assert status.device.type
    assert status.storage.bytes > 0
    assert status.storage.accessible
    assert status.issues == []


def test_status_has_what_holds_of_the_sandbox(kb: Client) -> None:
    """A missing part has a reason; an engine without a sandbox has no such member."""
    sandbox = kb.call(ops.GET_STATUS).sandbox
    if isinstance(sandbox, msgspec.UnsetType):
        pytest.skip("this engine has no sandbox")
    assert not set(sandbox.holds) & set(sandbox.missing)
    assert [part for part, why in sandbox.missing.items() if not why] == []
    assert bool(sandbox.holds or sandbox.missing) == (sandbox.setting != "off")


def test_status_follows_the_last_change(kb: Client) -> None:
    document = kb.note("granite")
    status = kb.call(ops.GET_STATUS)
    assert status.last_updated is not None
    assert status.started_at <= status.last_updated
    changed = kb.patched(document, text="basalt")
    assert kb.call(ops.GET_STATUS).last_updated == changed.updated_at


def test_the_probes_answer(kb: Client) -> None:
    assert kb.call(ops.GET_HEALTH).status == "ok"
    assert kb.call(ops.GET_READINESS).status == "ready"
