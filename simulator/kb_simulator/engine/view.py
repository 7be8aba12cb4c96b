"""The view of a knowledge base within an access scope: another base with only that part.

Hence no search, count, page, error or word statistic can depend on the rest. A change looks up the document
in the view first and then changes the whole base.
"""

from __future__ import annotations

from dataclasses import replace

from kb_contracts.access.reach import Reach
from kb_contracts.api.ragler import PREFIX
from kb_simulator.engine.collections import Collections
from kb_simulator.engine.documents import Documents
from kb_simulator.engine.jobs import JobRecord
from kb_simulator.engine.versions import History


def documents_within(documents: Documents, reach: Reach) -> Documents:
    """The documents with a tag within the access scope, and their history."""
    standing = {
        number: stored for number, stored in documents.by_id.items() if reach.admits(stored.document.tags)
    }
    return replace(
        documents,
        by_id=standing,
        index=documents.index.only({chunk.id for stored in standing.values() for chunk in stored.chunks}),
        owners={key: place for key, place in documents.owners.items() if place[0] in standing},
        history=_history_within(documents, reach),
        last_updated=max((stored.updated for stored in standing.values()), default=None),
        _by_uid={stored.document.uid: number for number, stored in standing.items()},
    )


def _history_within(documents: Documents, reach: Reach) -> History:
    """The versions within the scope, of documents that are in it now or were when they were removed."""
    by_id = {}
    for number, kept in documents.history.by_id.items():
        standing = documents.by_id.get(number)
        last = standing if standing is not None else kept[-1].stored
        if reach.admits(last.document.tags):
            by_id[number] = tuple(each for each in kept if reach.admits(each.stored.document.tags))
    return History(by_id)


def is_job_within(record: JobRecord, documents: Documents, reach: Reach) -> bool:
    """True if a job's tags are within the scope, and its document is, or was when it was removed."""
    if not reach.admits(record.job.tags):
        return False
    number = record.job.document_id
    if number is None:
        return True
    if (standing := documents.by_id.get(number)) is not None:
        return reach.admits(standing.document.tags)
    kept = documents.history.by_id.get(number, ())
    return not kept or reach.admits(kept[-1].stored.document.tags)


def collections_within(collections: Collections, reach: Reach) -> Collections:
    """The descriptions of collections within the scope."""
    return Collections(
        {name: each for name, each in collections.described.items() if reach.has(PREFIX + name)}
    )
