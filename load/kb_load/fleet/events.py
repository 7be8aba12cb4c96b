"""Discrete events: virtual time, machines whose cores are shared, and processes with queues.

What happens to a request is a generator of steps, as in simpy: `Work` on a process, a `Wait`, or several at
once (`Together`). simpy is not used because the one resource that decides here, cores that all processes of a
machine share, is not among its own: each process has so many threads and a queue, first come, first served;
the threads that have work share the cores evenly, as a fair scheduler shares them in the long run. With fewer
threads at work than cores each has one for itself. Times are seconds. No clock, no chance, no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeAlias


class CallFailed(Exception):
    """A step could not be done; a generator may catch it and try elsewhere."""


class Down(CallFailed):
    """The process was not up, or ended before the work was done."""


@dataclass(frozen=True, slots=True)
class Work:
    """So many seconds of one core, by a thread of `process`."""

    process: Process
    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """So many seconds in which no core is used."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Together:
    """Parts that begin now; it ends with the slowest, and fails then if one of them failed."""

    parts: Sequence[Steps]


Step: TypeAlias = Work | Wait | Together
Steps: TypeAlias = Generator[Step, None, None]
Ended: TypeAlias = Callable[[CallFailed | None], None]


class Simulation:
    """The events that are still to come, and the time of the one that happens."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Let it happen `seconds` from now; at one time, in the order it was asked for."""
        self._count += 1
        heappush(self._events, (self.now + seconds, self._count, action))

    def start(self, steps: Steps, ended: Ended) -> None:
        """Go through `steps`; `ended` hears of the end, and of the error that the generator let out."""
        self._resume(steps, ended, None)

    def run(self, until: float = inf) -> None:
        """Let everything happen up to and at `until`; time then stands at the last event."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heappop(self._events)
            action()

    def _resume(self, steps: Steps, ended: Ended, error: CallFailed | None) -> None:
        try:
            step = next(steps) if error is None else steps.throw(error)
        except StopIteration:
            ended(None)
            return
        except CallFailed as failed:
            ended(failed)
            return
        match step:
            case Work(process, seconds):
                process.submit(_Job(seconds, partial(self._resume, steps, ended)))
            case Wait(seconds):
                self.after(seconds, partial(self._resume, steps, ended, None))
            case Together(parts):
                self._start_all(parts, partial(self._resume, steps, ended))

    def _start_all(self, parts: Sequence[Steps], ended: Ended) -> None:
        errors: list[CallFailed | None] = []

        def one_ended(error: CallFailed | None) -> None:
            errors.append(error)
            if len(errors) == len(parts):
                ended(next((each for each in errors if each is not None), None))

        for part in parts:
            self.start(part, one_ended)
        if not parts:
            self.after(0, partial(ended, None))


@dataclass(eq=False, slots=True)
class _Job:
    seconds: float
    ended: Ended


class Machine:
    """Cores that the threads at work share evenly. `cores` need not be whole: neighbours may have the rest.

    All threads at work have got equally much of a core since any moment at which they were all at work. So
    one number, `_given`, stands for all, and a thread ends when it has grown by what that thread needs.
    """

    def __init__(self, simulation: Simulation, cores: float) -> None:
        if cores <= 0:
            raise ValueError("a machine has more than 0 cores")
        self.simulation = simulation
        self.cores = cores
        self._given = 0.0
        self._since = 0.0
        self._busy = 0.0
        self._count = 0
        self._version = 0
        self._working: list[tuple[float, int, _Job, Callable[[], None]]] = []

    @property
    def busy_seconds(self) -> float:
        """Core seconds used so far."""
        self._advance()
        return self._busy

    def begin(self, job: _Job, done: Callable[[], None]) -> None:
        self._advance()
        self._count += 1
        heappush(self._working, (self._given + job.seconds, self._count, job, done))
        self._plan()

    def abandon(self, jobs: Sequence[_Job]) -> None:
        """Work on these no more; their `done` is not called."""
        self._advance()
        self._working = [each for each in self._working if each[2] not in jobs]
        heapify(self._working)
        self._plan()

    def _share(self) -> float:
        return min(1.0, self.cores / len(self._working))

    def _advance(self) -> None:
        elapsed, self._since = self.simulation.now - self._since, self.simulation.now
        if self._working:
            self._given += elapsed * self._share()
            self._busy += elapsed * min(self.cores, len(self._working))

    def _plan(self) -> None:
        """Only the plan of the last version counts; what was planned before is void."""
        self._version += 1
        if self._working:
            left = max(0.0, self._working[0][0] - self._given)
            self.simulation.after(left / self._share(), partial(self._finish, self._version))

    def _finish(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        _, _, _, done = heappop(self._working)
        self._plan()
        done()


@dataclass(eq=False)
class Process:
    """`threads` that work at once, and a queue before them."""

    machine: Machine
    threads: int = 1
    is_up: bool = True
    outstanding: int = 0
    """Calls that whoever chooses between replicas has sent here and not seen the end of."""
    _waiting: deque[_Job] = field(default_factory=deque)
    _working: list[_Job] = field(default_factory=list)

    def submit(self, job: _Job) -> None:
        if not self.is_up:
            self.machine.simulation.after(0, partial(job.ended, Down()))
        else:
            self._waiting.append(job)
            self._take()

    def fail(self, seconds: float) -> None:
        """Go down now, with all that waits or is worked on, and come up again empty after `seconds`."""
        self.is_up = False
        self.machine.simulation.after(seconds, self._come_up)
        self.machine.abandon(self._working)
        lost = [*self._working, *self._waiting]
        self._working, self._waiting = [], deque()
        for job in lost:
            job.ended(Down())

    def _come_up(self) -> None:
        self.is_up = True

    def _take(self) -> None:
        while self._waiting and len(self._working) < self.threads:
            job = self._waiting.popleft()
            self._working.append(job)
            self.machine.begin(job, partial(self._done, job))

    def _done(self, job: _Job) -> None:
        self._working.remove(job)
        self._take()
        job.ended(None)
