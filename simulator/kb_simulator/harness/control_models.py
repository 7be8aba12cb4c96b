"""What goes over the control plane, and how it is read off a namespace. Seconds are virtual."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from kb_contracts.api import models as m
from kb_contracts.api.operations import DocumentsQuery, Limit
from kb_simulator.engine.policies import Policy
from kb_simulator.engine.timestamps import rfc3339
from kb_simulator.harness.clock import ClockMode
from kb_simulator.harness.fault_registry import ArmedFault
from kb_simulator.harness.faults import AnyEffect, Data
from kb_simulator.harness.journal import Record
from kb_simulator.harness.namespaces import Namespace

Name = Annotated[str, Meta(min_length=1, max_length=100)]
Advance = Annotated[float, Meta(ge=0, le=1e9, description="seconds to move on by")]


class ResetRequest(Data, frozen=True):
    """Begin anew, under another `seed` where one is given."""

    seed: int | None = None


class ClockRequest(Data, frozen=True):
    """How time is to pass."""

    mode: ClockMode


class AdvanceRequest(Data, frozen=True):
    """Move time on."""

    seconds: Advance


class PolicyRequest(Data, frozen=True):
    """How jobs end that are accepted from here on."""

    policy: Policy


class NamespaceRequest(Data, frozen=True):
    """A namespace to make, or to change. With an `api_key` it wants that key, and the key chooses it."""

    name: Name
    api_key: str | None = None
    clock: ClockMode | None = None
    seed: int | None = None


class JournalQuery(m.Request):
    """`GET /_sim/journal`: the newest so many."""

    limit: Limit = 100


class NamespaceInfo(m.Response):
    """A namespace in short."""

    name: str
    seed: int
    documents: int
    jobs: int
    faults: int
    requests: int


class Overview(m.Response):
    """The simulator and the namespace that the request names."""

    engine_url: str
    namespace: NamespaceInfo
    namespaces: list[str]


class NamespaceList(m.Response):
    """All namespaces, the oldest first."""

    namespaces: list[NamespaceInfo]


class ClockInfo(m.Response):
    """`elapsed` since the clock started, `now` as RFC 3339; `sleeping` counts who waits for time to pass."""

    mode: ClockMode
    elapsed: float
    now: str
    sleeping: int


class FaultList(m.Response):
    """The armed faults in the order in which they are consulted."""

    faults: list[ArmedFault]


class CatalogueEntry(m.Response):
    """A fault by name."""

    name: str
    effect: AnyEffect


class Catalogue(m.Response):
    """Every fault there is a name for."""

    faults: list[CatalogueEntry]


class PolicyInfo(m.Response):
    """How jobs end."""

    policy: Policy


class Snapshot(m.Response):
    """A state that was kept."""

    id: str


class SnapshotList(m.Response):
    """The states that were kept, the oldest first."""

    snapshots: list[Snapshot]


class StateInfo(m.Response):
    """What a namespace holds: counts, the newest documents and jobs, tags."""

    status: m.Status
    documents: list[m.Document]
    jobs: list[m.Job]
    tags: list[m.TagCount]


class JournalPage(m.Response):
    """The newest entries in the order of arrival; `dropped` were too old to keep."""

    entries: list[Record]
    total: int
    dropped: int


def namespace_info(namespace: Namespace) -> NamespaceInfo:
    """A namespace in short."""
    return NamespaceInfo(
        name=namespace.name,
        seed=namespace.seed,
        documents=len(namespace.state.documents.by_id),
        jobs=len(namespace.state.jobs),
        faults=len(namespace.faults.list()),
        requests=len(namespace.journal) + namespace.journal.dropped,
    )


def clock_info(namespace: Namespace) -> ClockInfo:
    """A namespace's time."""
    clock = namespace.clock
    return ClockInfo(
        mode=clock.mode,
        elapsed=clock.elapsed(),
        now=rfc3339(clock.microseconds()),
        sleeping=clock.sleeping,
    )


def state_info(namespace: Namespace, count: int) -> StateInfo:
    """What a namespace holds, the newest `count` of each kind."""
    state = namespace.state
    return StateInfo(
        status=state.status(),
        documents=state.document_page(DocumentsQuery(limit=count, sort_by="id")).documents,
        jobs=state.job_page(None, count, 0).jobs,
        tags=state.tags("", count, 0).tags,
    )
