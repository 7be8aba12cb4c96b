"""A typed client of the control plane, for programs without an event loop.

with ControlClient("http://127.0.0.1:8901") as control:
    mine = control.namespace("mine")
    mine.faults.arm("lost_ack", operation="createJob", nth=1)
    mine.clock.advance(10)
    mine.journal.expect(operation="createJob", exactly=1)
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, TypeVar

import httpx
import msgspec

from kb_contracts.api.errors import Problem
from kb_simulator.determinism import ClockMode
from kb_simulator.engine.jobs import Policy
from kb_simulator.harness import control as c
from kb_simulator.harness.control import BASE
from kb_simulator.harness.faults import AnyEffect, ArmedFault, Fault, When
from kb_simulator.harness.journal import Data, Expectation, Match, Record, Verdict, Verification
from kb_simulator.harness.namespaces import DEFAULT, HEADER

T = TypeVar("T")

_TIMEOUT_SECONDS = 30.0


class ControlError(Exception):
    """The control plane refused. `code` is stable, the text says what to do."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.code = problem.code


class ControlClient:
    """The control plane at `url`, for one namespace."""

    def __init__(self, url: str, namespace: str = DEFAULT, *, http: httpx.Client | None = None) -> None:
        self._url = url
        self._http = http or httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS, trust_env=False)
        self.name = namespace
        self.clock = ClockControl(self)
        self.faults = FaultsControl(self)
        self.journal = JournalControl(self)

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, those of clients made by `namespace` too."""
        self._http.close()

    def namespace(
        self,
        name: str,
        *,
        api_key: str | None = None,
        clock: ClockMode | None = None,
        seed: int | None = None,
    ) -> ControlClient:
        """A client for another namespace, which is made, or changed where something is given.

        With an `api_key` the namespace wants that bearer key, and the key alone chooses it.
        """
        wanted = c.NamespaceRequest(name=name, api_key=api_key, clock=clock, seed=seed)
        self.ask("POST", "/namespaces", c.NamespaceInfo, wanted)
        return ControlClient(self._url, name, http=self._http)

    def remove(self) -> None:
        self.ask("DELETE", f"/namespaces/{self.name}", c.NamespaceList)

    def overview(self) -> c.Overview:
        """The simulator and this namespace in short."""
        return self.ask("GET", "", c.Overview)

    def reset(self, seed: int | None = None) -> c.Overview:
        """Begin anew, under another seed where one is given."""
        return self.ask("POST", "/reset", c.Overview, c.ResetRequest(seed=seed))

    def state(self) -> c.StateInfo:
        return self.ask("GET", "/state", c.StateInfo)

    def snapshot(self) -> str:
        """Keep the state; its id."""
        return self.ask("POST", "/snapshots", c.Snapshot).id

    def restore(self, snapshot_id: str) -> None:
        """Go back to a state that was kept; clock, faults and journal go on."""
        self.ask("POST", f"/snapshots/{snapshot_id}/restore", c.Overview)

    def set_policy(self, policy: Policy) -> None:
        """Say how jobs end that are accepted from here on."""
        self.ask("POST", "/policy", c.JobPolicy, c.JobPolicy(policy=policy))

    def ask(self, method: str, path: str, kind: type[T], body: Data | None = None, **query: Any) -> T:
        """Any operation of the control plane, `path` after its base.

        Raises:
            ControlError: it was refused.
        """
        return msgspec.json.decode(self.ask_raw(method, path, body, **query), type=kind)

    def ask_raw(self, method: str, path: str, body: Data | None = None, **query: Any) -> bytes:
        """As `ask`, the answer as it came."""
        headers = {str(HEADER): self.name}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = msgspec.json.encode(body)
        answer = self._http.request(
            method, f"{BASE}{path}", content=content, headers=headers, params=query or None
        )
        if answer.is_error:
            raise ControlError(msgspec.json.decode(answer.content, type=Problem))
        return answer.content


class ClockControl:
    """A namespace's clock. Seconds are virtual."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control

    def read(self) -> c.ClockInfo:
        return self._control.ask("GET", "/clock", c.ClockInfo)

    def elapsed(self) -> float:
        """Seconds since the clock started."""
        return self.read().elapsed

    def advance(self, seconds: float) -> c.ClockInfo:
        """Move time on; whoever slept until then is awake."""
        return self._control.ask("POST", "/clock/advance", c.ClockInfo, c.AdvanceRequest(seconds=seconds))

    def set_mode(self, mode: ClockMode | Literal["autojump", "manual", "real"]) -> c.ClockInfo:
        return self._control.ask("POST", "/clock", c.ClockInfo, c.ClockRequest(mode=ClockMode(mode)))


class FaultsControl:
    """A namespace's faults."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control

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
        """Arm a fault of the catalogue by its `name`, or any `effect` under a name of your own.

        The parameters are those of `Match`, `When` and `Fault`.

        Raises:
            ValueError: there is no such fault, operation or code; the message says what is near.
            ControlError: the id is taken, or a value is out of range.
        """
        match = Match(operation=operation, method=method, path=path, body=body, tag=tag, header=header)
        when = When(nth=nth, every=every, times=times, probability=probability, until=until, count=count)
        return self.arm_fault(
            Fault(name=name, effect=effect, match=match, when=when, id=id, optional=optional)
        )

    def arm_fault(self, fault: Fault) -> ArmedFault:
        return self._control.ask("POST", "/faults", ArmedFault, fault)

    def disarm(self, fault_id: str) -> ArmedFault:
        return self._control.ask("DELETE", f"/faults/{fault_id}", ArmedFault)

    def disarm_all(self) -> list[ArmedFault]:
        return self._control.ask("DELETE", "/faults", c.FaultList).faults

    def list(self) -> list[ArmedFault]:
        return self._control.ask("GET", "/faults", c.FaultList).faults


class JournalControl:
    """A namespace's journal."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control

    def entries(self, limit: int = 1_000) -> list[Record]:
        """The newest entries, in the order of arrival."""
        return self._control.ask("GET", "/journal", c.JournalPage, limit=limit).entries

    def canonical(self) -> bytes:
        """The entries as two runs of one seed have them in common."""
        return self._control.ask_raw("GET", "/journal/canonical")

    def verify(self, *expectations: Expectation, in_order: tuple[Match, ...] = ()) -> Verdict:
        """Hold the journal to what is wanted; the verdict also names faults that never fired."""
        wanted = Verification(expectations=expectations, in_order=in_order)
        return self._control.ask("POST", "/journal/verify", Verdict, wanted)

    def expect(
        self,
        *,
        exactly: int | None = None,
        at_least: int | None = None,
        at_most: int | None = None,
        **match: str,
    ) -> None:
        """Raise AssertionError, naming the nearest request, unless so many match; `match` as in `Match`."""
        wanted = Expectation(match=Match(**match), exactly=exactly, at_least=at_least, at_most=at_most)
        self._hold(wanted)

    def never(self, **match: str) -> None:
        """Raise AssertionError if a request matches."""
        self._hold(Expectation(match=Match(**match), exactly=0))

    def in_order(self, *matches: Match) -> None:
        """Raise AssertionError unless the requests came one after another."""
        self._hold(in_order=matches)

    def _hold(self, *expectations: Expectation, in_order: tuple[Match, ...] = ()) -> None:
        if failures := self.verify(*expectations, in_order=in_order).failures:
            raise AssertionError("; ".join(failures))
