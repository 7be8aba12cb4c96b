"""Visibility in a transaction with an access scope; every statement of a repository has one, or a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kb_contracts.access.reach import REACH, Reach
from kb_contracts.api.errors import EngineError
from kb_engine.store import repository
from kb_engine.store.repository import documents, jobs, sources, state, versions
from tests.support.stores import Base, Place, new_note, opened, prepared, refused

MINE, THEIRS = "collection:mine", "collection:theirs"
TABLES = re.compile(
    r"(?:\b(?:FROM|JOIN|UPDATE|INTO) |\.insert\(\")"
    r"(documents|document_tags|document_sources|versions|jobs|collections|chunks|note_texts|feedback)\b"
)
BOUNDED = re.compile(r"\b(?:(?:within|version_within|job_within|of_document|_names)\(|reach=read\.reach\b)")

# Statements without an access scope, by reason. All others must have a condition from `Read`.
UNBOUNDED = {
    "for metrics, which only administrators of the whole base read": "jobs.oldest_queued",
    "of a document that `versions.find` has found within reach": "arrivals.restore",
    "the descriptions are chosen by `_is_within`": "collections.every",
    "the name is held against the reach": "collections._description",
    "an id is looked up that belongs to this name, or nobody's reach is bounded": "collections.put",
    "of a document that was found": (
        "content.note_text content.assign content.first_vector documents.detail documents._chunk_at "
        "sources.holder"
    ),
    "of a document that is held": (
        "content.passages content.keep_text content.describe content.content documents.commit "
        "documents.raise_version documents._remove documents._scope documents._tag "
        "documents.remove_tag feedback.give content.has_its_texts sources.attach sources.point "
        "sources.detach sources._set_first versions.keep"
    ),
    "the engine's own care of a base": ("content.ids_after content.count originals.of versions.hurt_after"),
    "asked of arrivals, and after `versions.find`": "documents.has",
    "a new document": "documents.insert",
    "nobody's reach is bounded (`check_whole`)": "documents.clear",
    "of the job that ends; how long work takes is known to all": "estimates.measure",
    "of jobs that were found; what stands before them is load": "estimates.jobs_of",
    "of documents that were found": "feedback.votes search.add_neighbors",
    "a new job": "jobs.accept",
    "the workers'": (
        "jobs.take jobs.change_lane jobs.report jobs.hold jobs.complete jobs.fail jobs.release "
        "jobs.hand_back jobs._requeue"
    ),
    "the order of the queue": "jobs._turn",
    "of a note that was found": "jobs.hold_last_update",
    "`find` has the last word": "jobs.retry",
    "the engine's own care of what failed": "jobs.failed jobs.let_go",
    "the engine's own care of its files": "jobs.spooled",
    "the engine's own care of what ended": "jobs._prune",
    "the condition is the caller's": "jobs._end versions._delete",
    "to keep the bound on all files": "originals.keep",
    "to make room": "originals.bytes_of_versions versions.drop_all",
    "of rows that went": "originals._drop",
    "an index's own": "state.documents_after state._documents",
    "a command that moves a base": (
        "transfer.document_ids transfer.put_records transfer.record transfer.jobs_by_status"
    ),
    "of a version that `_check_kept` has found": "versions.detail versions.find",
    "the next number must be one that none has": "versions.last",
    "of a version that was found": "versions.brought_back",
}


def statements() -> Iterator[tuple[str, str]]:
    """Yield each function of a repository whose source has a statement about these tables."""
    for path in sorted(Path(repository.__path__[0]).glob("*.py")):
        lines, tree = path.read_text().splitlines(), ast.parse(path.read_text())
        named = {
            name.id: "\n".join(lines[node.lineno - 1 : node.end_lineno])
            for node in tree.body
            if isinstance(node, ast.Assign)
            for name in node.targets
            if isinstance(name, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                used = [sql for name, sql in named.items() if re.search(rf"\b{name}\b", text)]
                if any(map(TABLES.search, [text, *used])):
                    yield f"{path.stem}.{node.name}", text


def test_every_statement_is_bounded_or_has_a_reason_not_to_be() -> None:
    found = dict(statements())
    unbounded = {name for name, text in found.items() if not BOUNDED.search(text)}
    assert unbounded == set(" ".join(UNBOUNDED.values()).split())
    assert len(found) > len(unbounded) + 15


@pytest.fixture
async def base(place: Place) -> AsyncIterator[Base]:
    async with opened(place) as base:
        yield base


async def note(base: Base, text: str, *tags: str, **changes: Any) -> int:
    return (await base.note(text, tags=list(tags), **changes)).id


async def test_a_transaction_sees_what_its_request_reaches(base: Base) -> None:
    """Error texts follow the scope too; outside a request everything is visible."""
    mine, theirs = await note(base, "granite", MINE), await note(base, "basalt", THEIRS)
    before = REACH.set(Reach(frozenset([MINE])))
    try:
        assert (await base.detail(mine)).id == mine
        there, never = [await refused(base.detail(number)) for number in (theirs, theirs + 7)]
        assert there.detail == never.detail.replace(str(theirs + 7), str(theirs))
        assert [each.document.id for each in (await base.find("granite basalt")).results] == [mine]
        assert (await refused(base.store.write(documents.delete, theirs))).code == "document_not_found"
        assert (await refused(base.store.write(documents.clear))).code == "forbidden"
    finally:
        REACH.reset(before)
    assert (await base.detail(theirs)).id == theirs


async def test_a_job_has_the_access_scope_of_its_submitter(base: Base) -> None:
    """The worker has no request: the job stores the scope of its duplicates, replacements and updates."""
    theirs = await note(base, "granite", THEIRS, dedup_scope="free", source_path="a")
    job = new_note("granite", tags=[MINE], dedup_scope="free", reach=Reach(frozenset([MINE])))
    leased = await base.lease(job)
    assert leased.job.reach == job.reach
    assert await base.store.read(sources.duplicate_for, leased.job) is None
    assert await base.store.write(documents.commit_duplicate, leased) is None
    done = await base.commit(leased, prepared("granite"))
    assert done is not None
    assert (done.deduplicated, done.document_id == theirs) == (False, False)


async def test_an_update_of_a_note_that_has_gone_out_of_reach_fails(base: Base) -> None:
    document = await note(base, "granite", MINE)
    job = new_note(
        "overwritten", kind="update", tags=[MINE], document_id=document, reach=Reach(frozenset([MINE]))
    )
    leased = await base.lease(job)
    await base.store.write(documents.remove_tag, document, MINE, None, THEIRS)
    with pytest.raises(EngineError, match="There is no document"):
        await base.commit(leased, prepared("overwritten"))
    assert (await base.store.read(jobs.find, job.id)).status == "running"


@pytest.mark.parametrize(
    ("reach", "seen"),
    [
        (Reach(), []),
        (Reach(frozenset(["a"])), ["a"]),
        (Reach(prefixes=frozenset(["a"])), ["a", "ab", "a'b"]),
        (Reach(prefixes=frozenset([""])), ["a", "ab", "a'b", "b%", "ü"]),
        (Reach(frozenset(["b%"]), frozenset(["ü"])), ["b%", "ü"]),
        (Reach(frozenset(["a'b", "x' OR 'a'='a"])), ["a'b"]),
        (Reach(prefixes=frozenset(["%", "_", "\U0010ffff"])), []),
    ],
)
async def test_tags_and_prefixes_are_taken_as_they_are(base: Base, reach: Reach, seen: list[str]) -> None:
    for tag in ("a", "ab", "a'b", "b%", "ü"):
        await note(base, f"text of {tag}", tag)
    await note(base, "without any tag")
    before = REACH.set(reach)
    try:
        tags = (await base.store.read(documents.tag_page, "", 100, 0)).tags
        assert sorted(each.tag for each in tags) == sorted(seen)
        found = await base.store.read(jobs.page, None, 100, 0)
        assert found.total == len(seen)
        assert (await base.find("text")).total == len(seen)
    finally:
        REACH.reset(before)


async def test_versions_whose_fields_have_a_nul_are_seen_by_their_tags(base: Base) -> None:
    """The tags of a version are read from JSON, whose other members have any text."""
    hostile: dict[str, Any] = {"title": "\0\\\0", "metadata": {"\0": ["\0\\u0000"], "\\u0000": "\1"}}
    mine = await note(base, "granite", MINE, r"a\u0000", "b\\", **hostile)
    theirs = await note(base, "basalt", THEIRS, r"a\u0001", **hostile)
    for number in (mine, theirs):
        await base.store.write(documents.delete, number)
    for reach in (
        Reach(frozenset([MINE])),
        Reach(frozenset([r"a\u0000"])),
        Reach(prefixes=frozenset(["b\\"])),
    ):
        before = REACH.set(reach)
        try:
            trash = await base.store.read(versions.trash, 10, 0)
            assert [(each.document_id, each.title) for each in trash.versions] == [(mine, "\0\\\0")]
            assert (await base.store.read(versions.find, mine, 1)).members.metadata == hostile["metadata"]
            assert (await base.store.read(jobs.page, None, 10, 0)).total == 1
            assert (await base.store.read(state.counts)).queue.completed == 1
        finally:
            REACH.reset(before)
