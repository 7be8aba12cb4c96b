"""Related documents of a submission: its duplicate, and the documents with the same source."""

from __future__ import annotations

from collections.abc import Iterable

from kb_contracts.access.reach import Reach
from kb_contracts.semantics.sources import Holder, source_scope
from kb_simulator.engine.documents import Documents
from kb_simulator.engine.submissions import Submission


def duplicate_of(documents: Documents, submission: Submission) -> int | None:
    """Return the oldest document with the same content in the same scope.

    If the scope is a tag of the submission (a collection), a document that is just being moved is no
    duplicate; with a source path, the duplicate must be in the collection of the source.
    """
    scope, tags = submission.dedup_scope, submission.tags
    for stored in documents.with_content(submission.dedup_key):
        carried = stored.document.tags
        if not _is_within(submission.reach, carried):
            continue
        if scope in tags and scope not in carried:
            continue
        if submission.source_path is None or source_scope(carried, scope) == source_scope(tags, scope):
            return stored.document.id
    return None


def holders_of(documents: Documents, submission: Submission) -> list[Holder]:
    """The documents to which the source of a submission points."""
    if submission.source_path is None:
        return []
    scope = source_scope(submission.tags, submission.dedup_scope)
    return holders(documents, submission.source_path, scope, submission.reach)


def holders(documents: Documents, path: str, scope: str, reach: Reach | None) -> list[Holder]:
    """The documents within the access scope to which a path in a deduplication scope points."""
    return [
        stored.holder
        for _, stored in sorted(documents.by_id.items())
        if path in stored.document.source_paths
        and _is_within(reach, stored.document.tags)
        and source_scope(stored.document.tags, stored.dedup_key[2]) == scope
    ]


def _is_within(reach: Reach | None, tags: Iterable[str]) -> bool:
    return reach is None or reach.admits(tags)
