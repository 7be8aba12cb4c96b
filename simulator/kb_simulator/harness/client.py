"""A typed client of the control plane, for programs without an event loop.

with ControlClient("http://127.0.0.1:8901") as control:
    mine = control.namespace("mine")
    mine.faults.arm("lost_ack", operation="createJob", nth=1)
    mine.clock.advance(10)
    mine.journal.expect(operation="createJob", exactly=1)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar, cast

import httpx
import msgspec

from kb_contracts.api.errors import Problem
from kb_simulator.determinism import ClockMode
from kb_simulator.engine.jobs import Policy
from kb_simulator.harness import control as c
from kb_simulator.harness.faults import AnyEffect, ArmedFault, Fault, When
from kb_simulator.harness.journal import Data, Expectation, Match, Record, Verdict, Verification
from kb_simulator.harness.namespaces import DEFAULT, HEADER

T = TypeVar("T", bound=msgspec.Struct)

_TIMEOUT_SECONDS = 300.0


class ControlError(Exception):
    """The control plane refused a request. `code` is stable; the text says how to correct it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.code = problem.code


class ControlClient:
    """The control plane at `url`, for one namespace."""

    def __init__(self, url: str, namespace: str = DEFAULT, *, http: httpx.Client | None = None) -> None:
        self._url = url
        # Certificates are loaded only for https, because that takes 20 ms.
        verify = httpx.URL(url).scheme == "https"
        self._http = http or httpx.Client(
            base_url=url, timeout=_TIMEOUT_SECONDS, trust_env=False, verify=verify
        )
        self.name = namespace
        self.clock = ClockControl(self)
        self.faults = FaultsControl(self)
        self.journal = JournalControl(self)

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, including those of clients returned by `namespace`."""
        self._http.close()

    def namespace(
        self,
        name: str,
        *,
        api_key: str | None = None,
        clock: ClockMode | None = None,
        seed: int | None = None,
    ) -> ControlClient:
        """Return a client for another namespace, which is created or, with further arguments, changed.

        A namespace with an `api_key` requires that bearer key and is selected by it alone.
        """
        wanted = c.NamespaceRequest(name=name, api_key=api_key, clock=clock, seed=seed)
        self.ask(c.set_namespace, wanted)
        return ControlClient(self._url, name, http=self._http)

    def remove(self) -> None:
        self.ask(c.remove_namespace, name=self.name)

    def overview(self) -> c.Overview:
        """Return a summary of the simulator and this namespace."""
        return self.ask(c.overview)

    def reset(self, seed: int | None = None) -> c.Overview:
        """Start again from an empty state, with another seed if one is given."""
        return self.ask(c.reset, c.ResetRequest(seed=seed))

    def state(self) -> c.StateInfo:
        return self.ask(c.get_state)

    def snapshot(self) -> str:
        """Save the state and return the snapshot's id."""
        return self.ask(c.snapshot).id

    def restore(self, snapshot_id: str) -> None:
        """Restore a snapshot of the state; clock, faults and journal are not restored."""
        self.ask(c.restore, snapshot_id=snapshot_id)

    def set_policy(self, policy: Policy) -> None:
        """Set how jobs accepted from now on end."""
        self.ask(c.set_policy, c.JobPolicy(policy=policy))

    def ask(self, endpoint: Callable[[c.Call], T], body: Data | None = None, **parameters: str | int) -> T:
        """Call an endpoint of the control plane; `parameters` are its path and query parameters.
        Raises ControlError: the request was refused.
        """
        operation = c.ENDPOINTS[endpoint]
        path = operation.fill_path({name: parameters.pop(name) for name in operation.path_parameters})
        answer = self.send(operation.method, path, body, **parameters)
        return cast("T", msgspec.json.decode(answer, type=operation.response_model))

    def send(self, method: str, path: str, body: Data | None = None, **query: str | int) -> bytes:
        """Send a request for this namespace and return the body of the answer.
        Raises ControlError: the request was refused.
        """
        headers = {HEADER: self.name, "Content-Type": "application/json"}
        content = None if body is None else msgspec.json.encode(body)
        answer = self._http.request(method, path, content=content, headers=headers, params=query or None)
        if answer.is_error:
            raise ControlError(msgspec.json.decode(answer.content, type=Problem))
        return answer.content


class _Part:
    """A part of the control plane of a namespace."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control


class ClockControl(_Part):
    """A namespace's clock. Seconds are virtual."""

    def read(self) -> c.ClockInfo:
        return self._control.ask(c.get_clock)

    def elapsed(self) -> float:
        """Seconds since the clock started."""
        return self.read().elapsed

    def advance(self, seconds: float) -> c.ClockInfo:
        """Move time forward and wake every sleep whose deadline has passed."""
        return self._control.ask(c.advance, c.AdvanceRequest(seconds=seconds))

    def set_mode(self, mode: ClockMode | Literal["autojump", "manual", "real"]) -> c.ClockInfo:
        return self._control.ask(c.set_clock, c.ClockRequest(mode=ClockMode(mode)))


class FaultsControl(_Part):
    """A namespace's faults."""

    def arm(
        self,
        name: str,
        effect: AnyEffect | None = None,
        *,
        operation: str | None = None,
        method: str | None = None,
        path: str | None = None,
        body: str | None = None,
        tag: str | None = None,
        header: str | None = None,
        nth: int | None = None,
        every: int | None = None,
        times: int | None = None,
        probability: float | None = None,
        until: float | None = None,
        count: Literal["rule", "request"] = "rule",
        id: str | None = None,
        optional: bool = False,
    ) -> ArmedFault:
        """Arm the catalogue's fault `name`, or any `effect` under a name of your own.

        The parameters are those of `Match`, `When` and `Fault`.

        Raises:
            ValueError: the fault, operation or code is unknown; the message suggests a similar name.
            ControlError: the id is in use, or a value is out of range.
        """
        match = Match(operation=operation, method=method, path=path, body=body, tag=tag, header=header)
        when = When(nth=nth, every=every, times=times, probability=probability, until=until, count=count)
        return self.arm_fault(
            Fault(name=name, effect=effect, match=match, when=when, id=id, optional=optional)
        )

    def arm_fault(self, fault: Fault) -> ArmedFault:
        return self._control.ask(c.arm, fault)

    def disarm(self, fault_id: str) -> ArmedFault:
        return self._control.ask(c.disarm, fault_id=fault_id)

    def disarm_all(self) -> list[ArmedFault]:
        return self._control.ask(c.disarm_all).faults

    def list(self) -> list[ArmedFault]:
        return self._control.ask(c.list_faults).faults


class JournalControl(_Part):
    """A namespace's journal."""

    def entries(self, limit: int = 1_000) -> list[Record]:
        """Return the newest entries in order of arrival."""
        return self._control.ask(c.journal, limit=limit).entries

    def canonical(self) -> bytes:
        """Return the entries as JSON lines that are equal in two runs with the same seed."""
        return self._control.send("GET", f"{c.BASE}/journal/canonical")

    def verify(self, *expectations: Expectation, in_order: tuple[Match, ...] = ()) -> Verdict:
        """Compare the journal with expectations. The verdict also lists the faults that never fired."""
        wanted = Verification(expectations=expectations, in_order=in_order)
        return self._control.ask(c.verify, wanted)

    def expect(
        self,
        *,
        exactly: int | None = None,
        at_least: int | None = None,
        at_most: int | None = None,
        **match: str,
    ) -> None:
        """Raise AssertionError, naming the nearest request, unless this number of requests match.

        `match` takes the members of `Match`.
        """
        wanted = Expectation(match=Match(**match), exactly=exactly, at_least=at_least, at_most=at_most)
        self._hold(wanted)

    def never(self, **match: str) -> None:
        """Raise AssertionError if a request matches."""
        self._hold(Expectation(match=Match(**match), exactly=0))

    def in_order(self, *matches: Match) -> None:
        """Raise AssertionError unless the requests arrived in this order."""
        self._hold(in_order=matches)

    def _hold(self, *expectations: Expectation, in_order: tuple[Match, ...] = ()) -> None:
        if failures := self.verify(*expectations, in_order=in_order).failures:
            raise AssertionError("; ".join(failures))
