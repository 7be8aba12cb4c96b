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

# Statements without an access scope, each with the reason. All others must have a condition from `Read`.
UNBOUNDED = {
    "jobs.oldest_queued": "for metrics, which only administrators of the whole base read",
    "arrivals.restore": "of a document that `versions.find` has found within reach",
    "collections.every": "the descriptions are chosen by `_is_within`",
    "collections._description": "the name is held against the reach",
    "collections.put": "an id is looked up that belongs to this name, or nobody's reach is bounded",
    "content.note_text": "of a document that was found",
    "content.passages": "of a document that is held",
    "content.assign": "of a document that was found",
    "content.ids_after": "the engine's own care of a base",
    "content.keep_text": "of a document that is held",
    "content.describe": "of a document that is held",
    "content.content": "of a document that is held",
    "content.first_vector": "of a document that was found",
    "documents.has": "asked of arrivals, and after `versions.find`",
    "documents.detail": "of a document that was found",
    "documents._chunk_at": "of a document that was found",
    "documents.insert": "a new document",
    "documents.commit": "of a document that is held",
    "documents.raise_version": "of a document that is held",
    "documents._remove": "of a document that is held",
    "documents.clear": "nobody's reach is bounded (`check_whole`)",
    "documents._scope": "of a document that is held",
    "documents._tag": "of a document that is held",
    "documents.remove_tag": "of a document that is held",
    "estimates.measure": "of the job that ends; how long work takes is known to all",
    "estimates.jobs_of": "of jobs that were found; what stands before them is load",
    "feedback.give": "of a document that is held",
    "feedback.votes": "of documents that were found",
    "jobs.accept": "a new job",
    "jobs.take": "the workers'",
    "jobs.change_lane": "the workers'",
    "jobs._turn": "the order of the queue",
    "jobs.report": "the workers'",
    "jobs.hold": "the workers'",
    "jobs.hold_last_update": "of a note that was found",
    "jobs.complete": "the workers'",
    "jobs.fail": "the workers'",
    "jobs.retry": "`find` has the last word",
    "jobs.failed": "the engine's own care of what failed",
    "jobs.let_go": "the engine's own care of what failed",
    "jobs.release": "the workers'",
    "jobs.hand_back": "the workers'",
    "jobs.spooled": "the engine's own care of its files",
    "jobs._prune": "the engine's own care of what ended",
    "jobs._end": "the condition is the caller's",
    "jobs._requeue": "the workers'",
    "content.has_its_texts": "of a document that is held",
    "content.count": "the engine's own care of a base",
    "originals.keep": "to keep the bound on all files",
    "originals.of": "the engine's own care of a base",
    "originals.bytes_of_versions": "to make room",
    "originals._drop": "of rows that went",
    "search.add_neighbors": "of documents that were found",
    "sources.holder": "of a document that was found",
    "sources.attach": "of a document that is held",
    "sources.point": "of a document that is held",
    "sources.detach": "of a document that is held",
    "sources._set_first": "of a document that is held",
    "state.documents_after": "an index's own",
    "state._documents": "an index's own",
    "transfer.document_ids": "a command that moves a base",
    "transfer.put_records": "a command that moves a base",
    "transfer.record": "a command that moves a base",
    "transfer.jobs_by_status": "a command that moves a base",
    "versions.detail": "of a version that `_check_kept` has found",
    "versions.find": "of a version that `_check_kept` has found",
    "versions.last": "the next number must be one that none has",
    "versions._delete": "the condition is the caller's",
    "versions.keep": "of a document that is held",
    "versions.brought_back": "of a version that was found",
    "versions.drop_all": "to make room",
    "versions.hurt_after": "the engine's own care of a base",
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
    assert unbounded == UNBOUNDED.keys()
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
