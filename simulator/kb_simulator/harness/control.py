"""The control plane: `/_sim`, on its own port, on the loopback interface.

Each endpoint is one declared function, from which its route and its operation are derived. Every endpoint
acts on the namespace named in the header `X-Sim-Namespace`. Requests of web pages are refused: the Host must
be a loopback name and an Origin must be this server's own. Seconds are virtual.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler as AiohttpHandler
from msgspec import Meta

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import AnyOperation, DocumentsQuery, Limit, Method, Operation
from kb_http.mount import Handler, build_application, problem_response
from kb_http.requests import Incoming
from kb_simulator.determinism import ClockMode, rfc3339
from kb_simulator.engine.jobs import Policy
from kb_simulator.harness.faults import CATALOGUE, ArmedFault, Fault
from kb_simulator.harness.journal import Data, Record, Verdict, Verification
from kb_simulator.harness.journal import verify as verify_journal
from kb_simulator.harness.namespaces import DEFAULT, HEADER, Namespace, Namespaces

BASE = "/_sim"

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_STATE_ENTRIES = 20

# --- request and response models -----------------------------------------------------------------


class ResetRequest(Data, frozen=True):
    """Start again from an empty state, with another `seed` if one is given."""

    seed: int | None = None


class ClockRequest(Data, frozen=True):
    mode: ClockMode


class AdvanceRequest(Data, frozen=True):
    seconds: Annotated[float, Meta(ge=0, le=1e9, description="seconds to move on by")]


class JobPolicy(Data, frozen=True):
    """Policy of jobs that are accepted from now on."""

    policy: Policy


class NamespaceRequest(Data, frozen=True):
    """A namespace to create or change. With an `api_key` it requires that key and is selected by it."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    api_key: str | None = None
    clock: ClockMode | None = None
    seed: int | None = None


class JournalQuery(m.Request):
    """The newest entries, at most `limit`."""

    limit: Limit = 100


class NamespaceInfo(m.Response):
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
    """`elapsed` since the clock started, `now` as RFC 3339; `sleeping` is the number of pending sleeps."""

    mode: ClockMode
    elapsed: float
    now: str
    sleeping: int


class FaultList(m.Response):
    """Armed faults, in the order in which they are consulted."""

    faults: list[ArmedFault]


class Catalogue(m.Response):
    """Every named fault."""

    faults: list[Fault]


class Snapshot(m.Response):
    """A saved state."""

    id: str


class SnapshotList(m.Response):
    """The saved states, the oldest first."""

    snapshots: list[Snapshot]


class StateInfo(m.Response):
    """The content of a namespace: counts, the newest documents and jobs, tags."""

    status: m.Status
    documents: list[m.Document]
    jobs: list[m.Job]
    tags: list[m.TagCount]


class JournalPage(m.Response):
    """The newest entries in order of arrival; `dropped` is the number of discarded older entries."""

    entries: list[Record]
    total: int
    dropped: int


def namespace_info(namespace: Namespace) -> NamespaceInfo:
    return NamespaceInfo(
        name=namespace.name,
        seed=namespace.seed,
        documents=len(namespace.state.documents.by_id),
        jobs=len(namespace.state.jobs),
        faults=len(namespace.faults.list()),
        requests=len(namespace.journal) + namespace.journal.dropped,
    )


# --- endpoints ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    namespaces: Namespaces
    engine_url: str
    namespace: Namespace
    path: Mapping[str, Any]
    body: Any = None
    query: Any = None


Act = Callable[[Call], msgspec.Struct]
ENDPOINTS: dict[Act, AnyOperation] = {}
"""The operation of every endpoint by its function, in the form of the contract's."""

A = TypeVar("A", bound=Callable[[Call], msgspec.Struct])


def _endpoint(method: Method, path: str, **members: Any) -> Callable[[A], A]:
    """Declare an endpoint: its id is the function's name, its summary the docstring."""

    def declare(act: A) -> A:
        ENDPOINTS[act] = Operation(
            re.sub("_([a-z])", lambda found: found[1].upper(), act.__name__),
            method,
            BASE + path,
            (act.__doc__ or "").rstrip("."),
            get_type_hints(act)["return"],
            path_parameters={name: str for _, name, _, _ in Formatter().parse(path) if name},
            **members,
        )
        return act

    return declare


@_endpoint(Method.GET, "")
def overview(call: Call) -> Overview:
    """A summary of the simulator."""
    names = [each.name for each in call.namespaces]
    return Overview(engine_url=call.engine_url, namespace=namespace_info(call.namespace), namespaces=names)


@_endpoint(Method.POST, "/reset", body=ResetRequest)
def reset(call: Call) -> Overview:
    """Start again from an empty state."""
    call.namespace.reset(call.body.seed)
    return overview(call)


@_endpoint(Method.GET, "/snapshots")
def list_snapshots(call: Call) -> SnapshotList:
    """The saved states."""
    return SnapshotList(snapshots=[Snapshot(id=snapshot_id) for snapshot_id in call.namespace.snapshots])


@_endpoint(Method.POST, "/snapshots")
def snapshot(call: Call) -> Snapshot:
    """Save the state."""
    return Snapshot(id=call.namespace.snapshot())


@_endpoint(Method.POST, "/snapshots/{snapshot_id}/restore")
def restore(call: Call) -> Overview:
    """Restore a saved state."""
    snapshot_id = call.path["snapshot_id"]
    if snapshot_id not in call.namespace.snapshots:
        raise _unknown("snapshot", "snapshot_id", snapshot_id, list(call.namespace.snapshots))
    call.namespace.restore(snapshot_id)
    return overview(call)


@_endpoint(Method.GET, "/clock")
def get_clock(call: Call) -> ClockInfo:
    """The present time."""
    clock = call.namespace.clock
    now = rfc3339(clock.microseconds())
    return ClockInfo(mode=clock.mode, elapsed=clock.elapsed(), now=now, sleeping=clock.sleeping)


@_endpoint(Method.POST, "/clock", body=ClockRequest)
def set_clock(call: Call) -> ClockInfo:
    """Set the mode of the clock."""
    call.namespace.clock.mode = call.body.mode
    return get_clock(call)


@_endpoint(Method.POST, "/clock/advance", body=AdvanceRequest)
def advance(call: Call) -> ClockInfo:
    """Move time on."""
    call.namespace.clock.advance(call.body.seconds)
    return get_clock(call)


@_endpoint(Method.GET, "/faults")
def list_faults(call: Call) -> FaultList:
    """The armed faults."""
    return FaultList(faults=call.namespace.faults.list())


@_endpoint(Method.POST, "/faults", body=Fault)
def arm(call: Call) -> ArmedFault:
    """Arm a fault."""
    try:
        return call.namespace.faults.arm(call.body)
    except ValueError as error:
        raise EngineError("invalid_parameter", f"{error}.", parameter="id") from error


@_endpoint(Method.DELETE, "/faults")
def disarm_all(call: Call) -> FaultList:
    """Disarm all faults and return their counts."""
    return FaultList(faults=call.namespace.faults.disarm_all())


@_endpoint(Method.DELETE, "/faults/{fault_id}")
def disarm(call: Call) -> ArmedFault:
    """Disarm a fault and return its counts."""
    faults, fault_id = call.namespace.faults, call.path["fault_id"]
    try:
        return faults.disarm(fault_id)
    except KeyError:
        raise _unknown("armed fault", "fault_id", fault_id, [each.id for each in faults.list()]) from None


@_endpoint(Method.GET, "/catalogue")
def catalogue(_call: Call) -> Catalogue:
    """The faults by name."""
    return Catalogue(faults=[Fault(name=name, effect=effect) for name, effect in CATALOGUE.items()])


@_endpoint(Method.GET, "/policy")
def get_policy(call: Call) -> JobPolicy:
    """The policy for the end of jobs."""
    return JobPolicy(policy=call.namespace.state.policy)


@_endpoint(Method.POST, "/policy", body=JobPolicy)
def set_policy(call: Call) -> JobPolicy:
    """Set how jobs accepted from now on end."""
    call.namespace.state.policy = call.body.policy
    return get_policy(call)


@_endpoint(Method.GET, "/state")
def get_state(call: Call) -> StateInfo:
    """The content of the namespace."""
    state, count = call.namespace.state, _STATE_ENTRIES
    return StateInfo(
        status=state.status(),
        documents=state.documents.page(DocumentsQuery(limit=count, sort_by="id")).documents,
        jobs=state.job_page(None, count, 0).jobs,
        tags=state.documents.tags("", count, 0).tags,
    )


@_endpoint(Method.GET, "/journal", query=JournalQuery)
def journal(call: Call) -> JournalPage:
    """The newest requests and answers."""
    kept = call.namespace.journal
    return JournalPage(entries=kept.latest(call.query.limit), total=len(kept), dropped=kept.dropped)


@_endpoint(Method.POST, "/journal/verify", body=Verification)
def verify(call: Call) -> Verdict:
    """Compare the journal with expectations."""
    return verify_journal(call.namespace.journal, call.body, call.namespace.faults.unfired())


@_endpoint(Method.GET, "/namespaces")
def list_namespaces(call: Call) -> NamespaceList:
    """All namespaces."""
    return NamespaceList(namespaces=[namespace_info(each) for each in call.namespaces])


@_endpoint(Method.POST, "/namespaces", body=NamespaceRequest)
def set_namespace(call: Call) -> NamespaceInfo:
    """Create or change a namespace: another seed resets it."""
    wanted: NamespaceRequest = call.body
    if wanted.api_key is not None:
        # Checked before any change: a refused request changes nothing.
        call.namespaces.check_key(wanted.name, wanted.api_key)
    namespace = call.namespaces.get(wanted.name)
    if wanted.seed is not None:
        namespace.reset(wanted.seed)
    if wanted.clock is not None:
        namespace.clock.mode = wanted.clock
    if wanted.api_key is not None:
        call.namespaces.set_key(wanted.name, wanted.api_key)
    return namespace_info(namespace)


@_endpoint(Method.DELETE, "/namespaces/{name}")
def remove_namespace(call: Call) -> NamespaceList:
    """Remove a namespace."""
    name = call.path["name"]
    if not call.namespaces.remove(name):
        raise _unknown("namespace", "name", name, [each.name for each in call.namespaces])
    return list_namespaces(call)


def _unknown(what: str, parameter: str, name: str, known: list[str]) -> EngineError:
    there = f" There is {', '.join(known[:20])}." if known else " There is none."
    return EngineError("invalid_parameter", f"There is no {what} {name!r}.{there}", parameter=parameter)


# --- the application ------------------------------------------------------------------------------


def build_control(namespaces: Namespaces, *, engine_url: str) -> web.Application:
    """Return the control plane over `namespaces`. Bind it to loopback."""

    def named(request: web.Request) -> Namespace:
        return namespaces.get(request.headers.get(HEADER, DEFAULT))

    def handler_of(act: Act) -> Handler:
        async def handler(incoming: Incoming) -> msgspec.Struct:
            assert isinstance(incoming.source, web.Request), "the control plane is HTTP's alone"
            namespace = named(incoming.source)
            return act(Call(namespaces, engine_url, namespace, incoming.path, incoming.body, incoming.query))

        return handler

    async def canonical(request: web.Request) -> web.Response:
        """Return the journal as JSON lines that are equal in two runs with the same seed."""
        return web.Response(body=named(request).journal.canonical(), content_type="application/x-ndjson")

    app = build_application(
        {operation.id: handler_of(act) for act, operation in ENDPOINTS.items()},
        operations=tuple(ENDPOINTS.values()),
    )
    app.middlewares.insert(0, _own_callers_only)
    app.router.add_get(f"{BASE}/journal/canonical", canonical)
    return app


@web.middleware
async def _own_callers_only(request: web.Request, handler: AiohttpHandler) -> web.StreamResponse:
    """Refuse requests that a page of another origin could make a browser send."""
    host = request.headers.get("Host", "")
    name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    origin = request.headers.get("Origin")
    if name not in _LOOPBACK:
        detail = f"Host {host!r} is not this machine's own. Use 127.0.0.1 or localhost."
    elif origin is not None and origin != f"http://{host}":
        detail = f"Origin {origin!r} may not drive the simulator."
    else:
        return await handler(request)
    return problem_response(EngineError("forbidden", detail))
