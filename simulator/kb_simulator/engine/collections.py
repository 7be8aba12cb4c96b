"""Collections: descriptions, lists, and counts over the documents that have their tags.

A name without a description is a collection as long as a document has its tag; its id is derived from the
name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kb_contracts.access.reach import Reach
from kb_contracts.api import ragler as r
from kb_contracts.semantics.access import check_described
from kb_contracts.semantics.collections import check_description, no_collection_id
from kb_simulator.determinism import rfc3339
from kb_simulator.engine.documents import Documents
from kb_simulator.engine.stored import Stored

_CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a collection; times in microseconds since 1970."""

    id: str
    request: r.CollectionRequest
    created_by: str
    created: int
    updated: int


@dataclass(slots=True)
class Collections:
    """The described collections by name; undescribed ones follow from the documents."""

    described: dict[str, Description] = field(default_factory=dict)

    def copy(self) -> Collections:
        return Collections(dict(self.described))

    def every(self, documents: Documents) -> r.CollectionList:
        """All collections, by name."""
        members = _members(documents)
        names = sorted(members.keys() | self.described.keys())
        each = [(self._known(name, members.get(name, [])), members.get(name, [])) for name in names]
        summaries = [r.CollectionSummary(**_summary(known, stored)) for known, stored in each]
        return r.CollectionList(collections=summaries, total=len(summaries))

    def detail(self, documents: Documents, id_: str) -> r.CollectionDetail:
        """Return one collection with its statistics."""
        name = self.name_of(documents, id_)
        members = _members(documents).get(name, [])
        known = self._known(name, members)
        audience, scenarios = known.request.target_audience, known.request.usage_scenarios
        last = max((stored.updated for stored in members), default=known.updated)
        tokens = sum(estimated_tokens(chunk.text) for stored in members for chunk in stored.chunks)
        chunks = sum(len(stored.chunks) for stored in members)
        return r.CollectionDetail(
            **_summary(known, members),
            updated_at=rfc3339(max(last, known.updated)),
            target_audience=msgspec.UNSET if audience is None else audience,
            usage_scenarios=msgspec.UNSET if scenarios is None else scenarios,
            statistics=r.CollectionStatistics(
                total_tokens=tokens,
                avg_chunk_size=round(tokens / chunks, 3) if chunks else 0.0,
                last_published=rfc3339(last),
            ),
        )

    def put(
        self,
        documents: Documents,
        id_: str,
        wanted: r.CollectionRequest,
        now: int,
        reach: Reach | None = None,
    ) -> r.CollectionDetail:
        """Create or change the description of a collection."""
        standing, members = self.described.get(wanted.name), _members(documents).get(wanted.name, [])
        check_described(reach, wanted.name, id_, None if standing is None else standing.id)
        check_description(
            id_,
            wanted.name,
            described_as=None if standing is None else standing.id,
            owner=next((name for name, other in self.described.items() if other.id == id_), None),
            in_use=bool(members),
        )
        if standing is None:
            created = min((stored.created for stored in members), default=now)
            creator = wanted.created_by or r.ENGINE_USER
            self.described[wanted.name] = Description(id_, wanted, creator, created, now)
        elif (later := _changed(standing, wanted, now)) is not None:
            self.described[wanted.name] = later
        return self.detail(documents, id_)

    def name_of(self, documents: Documents, id_: str) -> str:
        """Return the name of the collection with this id."""
        for name in (*self.described, *_members(documents)):
            if self._id_of(name) == id_:
                return name
        raise no_collection_id(id_)

    def ids(self, documents: Documents, names: Iterable[str]) -> dict[str, str]:
        """Return the ids by name, without names that are not collections."""
        there = self.described.keys() | _members(documents).keys()
        return {name: self._id_of(name) for name in names if name in there}

    def _id_of(self, name: str) -> str:
        known = self.described.get(name)
        return known.id if known else r.collection_id(name)

    def _known(self, name: str, members: list[Stored]) -> Description:
        """The description of a collection, or a default one derived from its documents."""
        return self.described.get(name) or Description(
            r.collection_id(name),
            r.CollectionRequest(name=name),
            r.ENGINE_USER,
            min(stored.created for stored in members),
            max(stored.updated for stored in members),
        )


def _changed(standing: Description, wanted: r.CollectionRequest, now: int) -> Description | None:
    """The changed description, or None if nothing changes."""
    creator = wanted.created_by or standing.created_by
    one, two = (msgspec.structs.replace(each, created_by=None) for each in (standing.request, wanted))
    if (one, standing.created_by) == (two, creator):
        return None
    return Description(standing.id, wanted, creator, standing.created, now)


def _members(documents: Documents) -> dict[str, list[Stored]]:
    """The documents of each collection in use, by its name."""
    members: dict[str, list[Stored]] = {}
    for stored in documents.by_id.values():
        for name in r.names_in(stored.document.tags):
            members.setdefault(name, []).append(stored)
    return members


def _summary(known: Description, members: list[Stored]) -> dict[str, Any]:
    return {
        "id": known.id,
        "name": known.request.name,
        "description": known.request.description,
        "chunk_count": sum(len(stored.chunks) for stored in members),
        "created_by": known.created_by,
        "created_at": rfc3339(known.created),
    }


def estimated_tokens(text: str) -> int:
    """A quarter of the number of characters, rounded up: the simulator has no tokenizer."""
    return -(-len(text) // _CHARACTERS_A_TOKEN)
