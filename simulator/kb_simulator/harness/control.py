"""The control plane: `/_sim` and a page, on a port of their own, on loopback, for the same machine only.

Every operation is about one namespace, which the header `X-Sim-Namespace` names. Requests that a web page
elsewhere makes are refused: the Host must be loopback's, and an Origin must be this page's own.
"""

from __future__ import annotations

from typing import cast

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler as AiohttpHandler

from kb_contracts.api.errors import PROBLEM_JSON, EngineError, Problem
from kb_contracts.api.models import Request
from kb_contracts.api.operations import AnyOperation, Method, Operation
from kb_contracts.http.mount import Incoming, build_application, handlers_of
from kb_simulator.harness import control_models as c
from kb_simulator.harness.fault_registry import ArmedFault
from kb_simulator.harness.faults import CATALOGUE, Data, Fault
from kb_simulator.harness.namespaces import DEFAULT, HEADER, Namespace, Namespaces
from kb_simulator.harness.page import add_page
from kb_simulator.harness.verification import Verdict, Verification, verify

BASE = "/_sim"

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_STATE_ENTRIES = 20


def _body(kind: type[Data]) -> type[Request]:
    # What goes in here is frozen and the contract's requests are not; to the adapter both are Structs.
    return cast("type[Request]", kind)


OPERATIONS: tuple[AnyOperation, ...] = (
    Operation("overview", Method.GET, BASE, "The simulator in short", c.Overview),
    Operation("reset", Method.POST, f"{BASE}/reset", "Begin anew", c.Overview, body=_body(c.ResetRequest)),
    Operation("listSnapshots", Method.GET, f"{BASE}/snapshots", "States that were kept", c.SnapshotList),
    Operation("snapshot", Method.POST, f"{BASE}/snapshots", "Keep the state as it is", c.Snapshot),
    Operation(
        "restore",
        Method.POST,
        f"{BASE}/snapshots/{{snapshot_id}}/restore",
        "Go back to a state that was kept",
        c.Overview,
        path_parameters={"snapshot_id": str},
    ),
    Operation("getClock", Method.GET, f"{BASE}/clock", "What time it is", c.ClockInfo),
    Operation(
        "setClock", Method.POST, f"{BASE}/clock", "How time passes", c.ClockInfo, body=_body(c.ClockRequest)
    ),
    Operation(
        "advance",
        Method.POST,
        f"{BASE}/clock/advance",
        "Move time on",
        c.ClockInfo,
        body=_body(c.AdvanceRequest),
    ),
    Operation("listFaults", Method.GET, f"{BASE}/faults", "The armed faults", c.FaultList),
    Operation("arm", Method.POST, f"{BASE}/faults", "Arm a fault", ArmedFault, body=_body(Fault)),
    Operation("disarmAll", Method.DELETE, f"{BASE}/faults", "Disarm all faults", c.FaultList),
    Operation(
        "disarm",
        Method.DELETE,
        f"{BASE}/faults/{{fault_id}}",
        "Disarm a fault",
        ArmedFault,
        path_parameters={"fault_id": str},
    ),
    Operation("catalogue", Method.GET, f"{BASE}/catalogue", "The faults by name", c.Catalogue),
    Operation("getPolicy", Method.GET, f"{BASE}/policy", "How jobs end", c.PolicyInfo),
    Operation(
        "setPolicy", Method.POST, f"{BASE}/policy", "Say it", c.PolicyInfo, body=_body(c.PolicyRequest)
    ),
    Operation("getState", Method.GET, f"{BASE}/state", "What the namespace holds", c.StateInfo),
    Operation(
        "journal",
        Method.GET,
        f"{BASE}/journal",
        "The newest requests and answers",
        c.JournalPage,
        query=c.JournalQuery,
    ),
    Operation(
        "verify",
        Method.POST,
        f"{BASE}/journal/verify",
        "Hold the journal to what is wanted",
        Verdict,
        body=_body(Verification),
    ),
    Operation("listNamespaces", Method.GET, f"{BASE}/namespaces", "All namespaces", c.NamespaceList),
    Operation(
        "setNamespace",
        Method.POST,
        f"{BASE}/namespaces",
        "Make or change a namespace",
        c.NamespaceInfo,
        body=_body(c.NamespaceRequest),
    ),
    Operation(
        "removeNamespace",
        Method.DELETE,
        f"{BASE}/namespaces/{{name}}",
        "Forget a namespace",
        c.NamespaceList,
        path_parameters={"name": c.Name},
    ),
)
"""The control plane's operations, in the contract's own form."""


def build_control(namespaces: Namespaces, *, engine_url: str) -> web.Application:
    """The control plane over `namespaces`. Bind it to loopback."""
    app = build_application(
        handlers_of(Control(namespaces, engine_url), operations=OPERATIONS), operations=OPERATIONS
    )
    app.middlewares.insert(0, _own_callers_only)
    app.router.add_get(f"{BASE}/journal/canonical", _canonical(namespaces))
    add_page(app, namespaces, engine_url)
    return app


class Control:
    """One handler for each operation."""

    def __init__(self, namespaces: Namespaces, engine_url: str) -> None:
        self._namespaces = namespaces
        self._engine_url = engine_url

    def _namespace(self, incoming: Incoming) -> Namespace:
        return self._namespaces.get(incoming.http.headers.get(HEADER, DEFAULT))

    async def overview(self, incoming: Incoming) -> c.Overview:
        """The namespace and its neighbours."""
        return self._overview(self._namespace(incoming))

    async def reset(self, incoming: Incoming) -> c.Overview:
        """Begin anew."""
        namespace = self._namespace(incoming)
        namespace.reset(incoming.body.seed)
        return self._overview(namespace)

    async def list_snapshots(self, incoming: Incoming) -> c.SnapshotList:
        """The kept states."""
        kept = self._namespace(incoming).snapshots
        return c.SnapshotList(snapshots=[c.Snapshot(id=snapshot_id) for snapshot_id in kept])

    async def snapshot(self, incoming: Incoming) -> c.Snapshot:
        """Keep the state."""
        return c.Snapshot(id=self._namespace(incoming).snapshot())

    async def restore(self, incoming: Incoming) -> c.Overview:
        """Go back to a kept state."""
        namespace, snapshot_id = self._namespace(incoming), incoming.path["snapshot_id"]
        if snapshot_id not in namespace.snapshots:
            raise _unknown("snapshot", "snapshot_id", snapshot_id, list(namespace.snapshots))
        namespace.restore(snapshot_id)
        return self._overview(namespace)

    async def get_clock(self, incoming: Incoming) -> c.ClockInfo:
        """What time it is."""
        return c.clock_info(self._namespace(incoming))

    async def set_clock(self, incoming: Incoming) -> c.ClockInfo:
        """How time passes."""
        namespace = self._namespace(incoming)
        namespace.clock.mode = incoming.body.mode
        return c.clock_info(namespace)

    async def advance(self, incoming: Incoming) -> c.ClockInfo:
        """Move time on."""
        namespace = self._namespace(incoming)
        namespace.clock.advance(incoming.body.seconds)
        return c.clock_info(namespace)

    async def list_faults(self, incoming: Incoming) -> c.FaultList:
        """The armed faults."""
        return c.FaultList(faults=self._namespace(incoming).faults.list())

    async def arm(self, incoming: Incoming) -> ArmedFault:
        """Arm a fault."""
        try:
            return self._namespace(incoming).faults.arm(incoming.body)
        except ValueError as error:
            raise EngineError("invalid_parameter", f"{error}.", parameter="id") from error

    async def disarm_all(self, incoming: Incoming) -> c.FaultList:
        """Disarm all faults, and tell what they did."""
        return c.FaultList(faults=self._namespace(incoming).faults.disarm_all())

    async def disarm(self, incoming: Incoming) -> ArmedFault:
        """Disarm a fault, and tell what it did."""
        faults, fault_id = self._namespace(incoming).faults, incoming.path["fault_id"]
        try:
            return faults.disarm(fault_id)
        except KeyError:
            raise _unknown(
                "armed fault", "fault_id", fault_id, [armed.id for armed in faults.list()]
            ) from None

    async def catalogue(self, _incoming: Incoming) -> c.Catalogue:
        """The faults by name."""
        return c.Catalogue(
            faults=[c.CatalogueEntry(name=name, effect=effect) for name, effect in CATALOGUE.items()]
        )

    async def get_policy(self, incoming: Incoming) -> c.PolicyInfo:
        """How jobs end."""
        return c.PolicyInfo(policy=self._namespace(incoming).state.policy)

    async def set_policy(self, incoming: Incoming) -> c.PolicyInfo:
        """Say how jobs end that are accepted from here on."""
        state = self._namespace(incoming).state
        state.policy = incoming.body.policy
        return c.PolicyInfo(policy=state.policy)

    async def get_state(self, incoming: Incoming) -> c.StateInfo:
        """What the namespace holds."""
        return c.state_info(self._namespace(incoming), _STATE_ENTRIES)

    async def journal(self, incoming: Incoming) -> c.JournalPage:
        """The newest requests and answers."""
        journal = self._namespace(incoming).journal
        return c.JournalPage(
            entries=journal.latest(incoming.query.limit), total=len(journal), dropped=journal.dropped
        )

    async def verify(self, incoming: Incoming) -> Verdict:
        """Hold the journal to what is wanted."""
        namespace = self._namespace(incoming)
        return verify(namespace.journal, incoming.body, namespace.faults.list())

    async def list_namespaces(self, _incoming: Incoming) -> c.NamespaceList:
        """All namespaces."""
        return c.NamespaceList(namespaces=[c.namespace_info(each) for each in self._namespaces])

    async def set_namespace(self, incoming: Incoming) -> c.NamespaceInfo:
        """Make a namespace, or change it: another seed begins it anew."""
        wanted: c.NamespaceRequest = incoming.body
        namespace = self._namespaces.get(wanted.name)
        if wanted.seed is not None:
            namespace.reset(wanted.seed)
        if wanted.clock is not None:
            namespace.clock.mode = wanted.clock
        if wanted.api_key is not None:
            self._namespaces.set_key(wanted.name, wanted.api_key)
        return c.namespace_info(namespace)

    async def remove_namespace(self, incoming: Incoming) -> c.NamespaceList:
        """Forget a namespace."""
        name = incoming.path["name"]
        if not self._namespaces.remove(name):
            raise _unknown("namespace", "name", name, [each.name for each in self._namespaces])
        return await self.list_namespaces(incoming)

    def _overview(self, namespace: Namespace) -> c.Overview:
        return c.Overview(
            engine_url=self._engine_url,
            namespace=c.namespace_info(namespace),
            namespaces=[each.name for each in self._namespaces],
        )


def _canonical(namespaces: Namespaces) -> AiohttpHandler:
    async def canonical(request: web.Request) -> web.Response:
        """The journal as two runs of one seed have it in common, as JSON lines."""
        namespace = namespaces.get(request.headers.get(HEADER, DEFAULT))
        return web.Response(body=namespace.journal.canonical(), content_type="application/x-ndjson")

    return canonical


@web.middleware
async def _own_callers_only(request: web.Request, handler: AiohttpHandler) -> web.StreamResponse:
    """Refuse what a page elsewhere could make a browser send."""
    host = request.headers.get("Host", "")
    name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    origin = request.headers.get("Origin")
    if name not in _LOOPBACK:
        return _forbidden(f"Host {host!r} is not this machine's own. Use 127.0.0.1 or localhost.")
    if origin is not None and origin != f"http://{host}":
        return _forbidden(f"Origin {origin!r} may not drive the simulator.")
    return await handler(request)


def _forbidden(detail: str) -> web.Response:
    problem = Problem(
        type="urn:kb:error:forbidden",
        title="This caller is refused",
        status=403,
        code="forbidden",
        detail=detail,
    )
    return web.Response(body=msgspec.json.encode(problem), status=403, content_type=PROBLEM_JSON)


def _unknown(what: str, parameter: str, name: str, known: list[str]) -> EngineError:
    there = f" There is {', '.join(known[:20])}." if known else " There is none."
    return EngineError("invalid_parameter", f"There is no {what} {name!r}.{there}", parameter=parameter)
