"""What one call costs real processes, and what they do under open load: the figures the model starts from.

Processor time is read from Linux's scheduler, which counts nanoseconds for each thread, around single calls
that come one after the other. It is a cost, not a wait: neighbours on the machine do not change it much.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from kb_load.fleet.model import Service
from kb_load.messages import CallFailed
from kb_load.processes import LOOPBACK, Running
from kb_load.report import percentile


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Real processes under open load. Latencies in milliseconds from when a call was due.

    `client` is processor seconds a call of the process that made the calls. `cores` are those that other
    programs left, on average.
    """

    rate: float
    p50: float
    p95: float
    client: float
    cores: float


def request_bytes(port: int, path: str, headers: dict[str, str], body: bytes) -> bytes:
    """A POST of HTTP/1.1 as it travels."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {LOOPBACK}:{port}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def costs_of(processes: Sequence[Running], port: int, requests: Sequence[bytes]) -> list[Service]:
    """Send `requests` one after the other; what each cost each process. The first tenth warms.

    Raises:
        CallFailed: one is answered with an error.
    """

    async def measure() -> list[list[float]]:
        streams = await asyncio.open_connection(LOOPBACK, port)
        found = []
        try:
            for request in requests:
                before = [_scheduled_seconds(each.pid) for each in processes]
                await _answer(streams, request)
                after = [_scheduled_seconds(each.pid) for each in processes]
                found.append([late - early for early, late in zip(before, after, strict=True)])
        finally:
            await _close([streams])
        return found[len(found) // 10 :]

    return [Service.of(seconds) for seconds in zip(*asyncio.run(measure()), strict=True)]


def observe(
    processes: Sequence[Running],
    ports: Sequence[int],
    requests: dict[int, Sequence[bytes]],
    *,
    rate: float,
    seconds: float,
    seed: int,
) -> Observed:
    """Send `rate` requests a second by chance (Poisson) for `seconds`, to each of `ports` in turn.

    `processes` are all that work on them.

    Raises:
        CallFailed: one is answered with an error.
    """
    rng = random.Random(seed)
    due = [rng.expovariate(rate)]
    while due[-1] < seconds:
        due.append(due[-1] + rng.expovariate(rate))
    others_before, own_before = _busy_seconds(), _own_seconds(processes)
    client_before, began = time.process_time(), time.monotonic()
    latencies = asyncio.run(_offer(ports, requests, due))
    elapsed, client = time.monotonic() - began, time.process_time() - client_before
    others = _busy_seconds() - others_before - (_own_seconds(processes) - own_before) - client
    cores = psutil.cpu_count() or 1
    return Observed(
        rate=len(due) / elapsed,
        p50=percentile(latencies, 0.5) * 1000,
        p95=percentile(latencies, 0.95) * 1000,
        client=client / len(due),
        cores=max(0.1, cores - max(0.0, others) / elapsed),
    )


async def _offer(
    ports: Sequence[int], requests: dict[int, Sequence[bytes]], due: Sequence[float]
) -> list[float]:
    idle: dict[int, list[_Streams]] = {port: [] for port in ports}
    opened: list[_Streams] = []

    async def call(number: int, at: float) -> float:
        port = ports[number % len(ports)]
        if not idle[port]:
            opened.append(await asyncio.open_connection(LOOPBACK, port))
            idle[port].append(opened[-1])
        streams = idle[port].pop()
        await _answer(streams, requests[port][number % len(requests[port])])
        idle[port].append(streams)
        return loop.time() - at

    loop = asyncio.get_running_loop()
    began, calls = loop.time(), []
    for number, after in enumerate(due):
        if (early := began + after - loop.time()) > 0:
            await asyncio.sleep(early)
        calls.append(asyncio.create_task(call(number, began + after)))
    # All end before the first error is raised: none is left in the middle of opening a connection.
    await asyncio.gather(*calls, return_exceptions=True)
    await _close(opened)
    return [each.result() for each in calls]


async def _close(opened: Sequence[_Streams]) -> None:
    for _, writer in opened:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in opened), return_exceptions=True)


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _answer(streams: _Streams, request: bytes) -> None:
    reader, writer = streams
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    body = await reader.readexactly(length)
    if not head.startswith(b"http/1.1 200"):
        raise CallFailed(body[:300].decode(errors="replace"))


def _scheduled_seconds(pid: int) -> float:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def _own_seconds(processes: Sequence[Running]) -> float:
    return sum(each.cpu_seconds() for each in processes)


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
