"""Namespaces: independent engines in one process, each with its own state, time, faults and journal.

A request selects one by the header `X-Sim-Namespace`, or by a namespace's key as its bearer key (for clients
that cannot send additional headers); the default is `default`. A namespace is created when it is first named.
Values derived from its seed do not depend on its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from multidict import MultiMapping, istr

from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.requests import KeysInUse, RateWindows
from kb_http.requests import token_of
from kb_simulator.determinism import Clock, ClockMode, Seeded
from kb_simulator.engine.jobs import AtOnce, Policy
from kb_simulator.engine.state import State
from kb_simulator.harness.faults import FaultRegistry
from kb_simulator.harness.journal import Journal
from kb_simulator.settings import SimulatorSettings

HEADER = "X-Sim-Namespace"
DEFAULT = "default"

_HEADER = istr(HEADER)  # faster to look up than a plain string; used for every request
_NAME_CHARS = 100
_CACHED_BYTES = 32 << 20  # maximum size of the cache; beyond it, it is cleared


@dataclass(slots=True)
class SearchCache:
    """The answers to searches since the last change of one state."""

    _answers: dict[bytes, bytes] = field(default_factory=dict)
    _state: State | None = None
    _revision: int = -1
    _bytes: int = 0

    def get(self, state: State, body: bytes) -> bytes | None:
        """Return the answer cached for this body since the last change of the documents, or None."""
        if state is not self._state or state.documents.revision != self._revision:
            return None
        return self._answers.get(body)

    def keep(self, state: State, body: bytes, answer: bytes) -> None:
        revision = state.documents.revision
        if state is not self._state or revision != self._revision or self._bytes > _CACHED_BYTES:
            self._answers.clear()
            self._state, self._revision, self._bytes = state, revision, 0
        self._answers[body] = answer
        self._bytes += len(body) + len(answer)


@dataclass(slots=True)
class Namespace:
    """One engine. `api_key` is the key that callers must send, or empty; `policy` is the first job policy."""

    name: str
    seed: int
    api_key: str = ""
    clock: Clock = field(default_factory=Clock)
    policy: Policy = field(default_factory=AtOnce)
    keeps_originals: bool = False
    state: State = field(init=False)
    faults: FaultRegistry = field(init=False)
    journal: Journal = field(init=False)
    search_cache: SearchCache = field(init=False)
    keys: KeysInUse = field(init=False)
    rates: RateWindows = field(init=False)
    snapshots: dict[str, State] = field(init=False)
    _waiting: dict[str, list[asyncio.Future[None]]] = field(init=False)

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        seeded = Seeded(self.seed)
        self.state = State(seeded, self.clock.microseconds, self.policy, keeps_originals=self.keeps_originals)
        self.faults = FaultRegistry(seeded, lambda: self.state)
        self.journal = Journal()
        self.search_cache = SearchCache()
        self.keys = KeysInUse()
        self.rates = RateWindows(self.clock.microseconds)
        self.snapshots = {}
        self._waiting = {}

    def reset(self, seed: int | None = None) -> None:
        """Start again from an empty state, with another seed if given. Waiting and hanging requests end."""
        self.release()
        self.seed = self.seed if seed is None else seed
        self.clock = Clock(self.clock.mode)
        self._begin()

    def release(self) -> None:
        """End all waiting and hanging requests."""
        self.clock.release()
        self._wake(list(self._waiting))

    def snapshot(self) -> str:
        """Save the present state and return its id, which is the same in every run."""
        snapshot_id = f"snapshot-{len(self.snapshots) + 1}"
        self.snapshots[snapshot_id] = self.state.copy()
        return snapshot_id

    def restore(self, snapshot_id: str) -> None:
        """Restore a saved state; clock, limits, faults and journal are not restored.
        Raises KeyError: no such snapshot exists.
        """
        self.state = self.snapshots[snapshot_id].copy()
        self.wake_ended()

    async def wait_for_end(self, job_id: str, seconds: float) -> None:
        """Return when the job has ended, or after `seconds` of virtual time."""
        left = self.state.seconds_to_end(job_id)
        timer = self.clock.timer(seconds if left is None else min(seconds, left))
        self._waiting.setdefault(job_id, []).append(timer)
        try:
            await timer
        finally:
            if timer in (waiting := self._waiting.get(job_id, [])):
                waiting.remove(timer)
            if not waiting:
                self._waiting.pop(job_id, None)

    def wake_ended(self) -> None:
        """Wake the requests that wait for a job that has ended or no longer exists."""
        if self._waiting:
            jobs = self.state.jobs
            self._wake([each for each in self._waiting if (job := jobs.get(each)) is None or job.ended])

    def _wake(self, job_ids: Iterable[str]) -> None:
        for timer in (timer for job_id in job_ids for timer in self._waiting.pop(job_id, [])):
            if not timer.done():
                timer.set_result(None)


@dataclass(slots=True)
class Namespaces:
    """All namespaces, which begin as the settings say; only `default` gets their `api_key`."""

    settings: SimulatorSettings
    _by_name: dict[str, Namespace] = field(default_factory=dict)
    _by_key: dict[str, Namespace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.get(DEFAULT)

    def __iter__(self) -> Iterator[Namespace]:
        return iter(list(self._by_name.values()))

    def get(self, name: str) -> Namespace:
        """Return the namespace with this name, creating it if necessary.
        Raises EngineError: `invalid_parameter`.
        """
        if (known := self._by_name.get(name)) is not None:
            return known
        if not (0 < len(name) <= _NAME_CHARS and name.isascii() and name.isprintable()):
            detail = f"{HEADER} takes 1 to {_NAME_CHARS} printable ASCII characters."
            raise EngineError("invalid_parameter", detail, parameter=HEADER)
        settings = self.settings
        if len(self._by_name) >= settings.namespaces:
            detail = f"There are {settings.namespaces} namespaces, the limit. "
            detail += "Delete some by the control plane, or raise KB_SIM_NAMESPACES."
            raise EngineError("invalid_parameter", detail, parameter=HEADER)
        self._by_name[name] = namespace = Namespace(
            name,
            settings.seed,
            settings.api_key if name == DEFAULT else "",
            Clock(ClockMode(settings.clock)),
            settings.policy,
            settings.keep_originals,
        )
        return namespace

    def key_for(self, headers: MultiMapping[str]) -> str:
        """The key that a request must send to its namespace; empty if none is required."""
        if (name := headers.get(_HEADER)) is not None:
            found = self._by_name.get(name)
            return found.api_key if found is not None else ""
        return self.chosen_by(headers).api_key

    def chosen_by(self, headers: MultiMapping[str]) -> Namespace:
        """Return the namespace that a request selects. Raises EngineError: `invalid_parameter`."""
        if (name := headers.get(_HEADER)) is not None:
            return self.get(name)
        if self._by_key and (found := self._by_key.get(token_of(headers))) is not None:
            return found
        return self._by_name[DEFAULT]

    def check_key(self, name: str, api_key: str) -> None:
        """Check that no namespace but `name` has this key. Raises EngineError: `contradiction`."""
        if (owner := self._by_key.get(api_key)) is not None and owner.name != name:
            raise EngineError("contradiction", "Another namespace has this key.", parameter="api_key")

    def set_key(self, name: str, api_key: str) -> None:
        """Set the key of a namespace. Raises EngineError: `contradiction`, if another namespace has it."""
        self.check_key(name, api_key)
        namespace = self.get(name)
        self._by_key.pop(namespace.api_key, None)
        namespace.api_key = api_key
        if api_key and name != DEFAULT:
            self._by_key[api_key] = namespace

    def remove(self, name: str) -> bool:
        """Remove a namespace and return whether it existed. `default` is reset instead."""
        if name == DEFAULT:
            self._by_name[name].reset()
            return True
        if (namespace := self._by_name.pop(name, None)) is None:
            return False
        namespace.release()
        self._by_key.pop(namespace.api_key, None)
        return True

    def release(self) -> None:
        for namespace in self:
            namespace.release()
