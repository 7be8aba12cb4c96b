"""Samples of processes over time: resident memory, processor share, open sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from statistics import linear_regression

import msgspec
import psutil

MEBIBYTE = 1024 * 1024
_MOST_SAMPLES = 20_000


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One process, those it started included, at one moment. `cpu` is in cores."""

    seconds: float
    name: str
    resident_mib: float
    cpu: float
    sockets: int


class Sampler:
    """Takes a sample of each process every `interval` seconds, from a thread, until it is left."""

    def __init__(self, processes: Mapping[str, int], *, interval: float = 1.0, sockets: bool = True) -> None:
        """`processes` are process ids by name."""
        self._roots = {name: psutil.Process(pid) for name, pid in processes.items()}
        self._interval = interval
        self._sockets = sockets
        self._began = time.monotonic()
        self._before: dict[str, tuple[float, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._take_all, name="sampler", daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)

    def _take_all(self) -> None:
        while len(self.samples) < _MOST_SAMPLES:
            for name, root in self._roots.items():
                try:
                    self.samples.append(self._take(name, root))
                except psutil.NoSuchProcess:
                    continue
            if self._ended.wait(self._interval):
                return

    def _take(self, name: str, root: psutil.Process) -> Sample:
        resident = cpu_seconds = 0.0
        sockets = 0
        for process in [root, *root.children(recursive=True)]:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    resident += process.memory_info().rss
                    cpu_seconds += times.user + times.system
                if self._sockets:
                    sockets += len(process.net_connections(kind="tcp"))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        now = time.monotonic()
        then, before = self._before.get(name, (now, cpu_seconds))
        self._before[name] = (now, cpu_seconds)
        share = (cpu_seconds - before) / (now - then) if now > then else 0.0
        return Sample(
            seconds=round(now - self._began, 2),
            name=name,
            resident_mib=round(resident / MEBIBYTE, 2),
            cpu=round(max(0.0, share), 3),
            sockets=sockets,
        )


def of(samples: Sequence[Sample], name: str) -> list[Sample]:
    """The samples of one process, in order of time."""
    return [sample for sample in samples if sample.name == name]


def slope(samples: Sequence[Sample], *, skip: float = 0.0) -> float:
    """MiB a minute by which resident memory grows, by least squares; the first `skip` seconds are left out.

    Raises:
        ValueError: fewer than two moments are left.
    """
    points = [(sample.seconds / 60, sample.resident_mib) for sample in samples if sample.seconds >= skip]
    if len({moment for moment, _ in points}) < 2:
        raise ValueError("a slope needs two samples at different moments")
    return linear_regression(*zip(*points, strict=True)).slope
