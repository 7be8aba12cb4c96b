"""A simulator that runs, with short names for what tests do all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from kb_simulator.harness.app import Simulator
from kb_simulator.harness.faults import AnyEffect, Fault, When
from kb_simulator.harness.journal import Match
from kb_simulator.harness.namespaces import DEFAULT, Namespace

API = "/api/v1"

_TURNS = 100_000


@dataclass(frozen=True, slots=True)
class Running:
    """A simulator in the test's own loop, where its parts may be looked at directly."""

    simulator: Simulator
    http: httpx.AsyncClient

    @property
    def namespace(self) -> Namespace:
        """The one that requests go to which choose none."""
        return self.simulator.namespaces.get(DEFAULT)

    def arm(
        self, name: str, effect: AnyEffect | None = None, *, operation: str | None = None, **when: Any
    ) -> str:
        """Arm a fault; its id."""
        fault = Fault(name=name, effect=effect, match=Match(operation=operation), when=When(**when))
        return self.namespace.faults.arm(fault).id

    async def sleeping(self, count: int) -> None:
        """Let the loop run until so many sleep."""
        for _ in range(_TURNS):
            if self.namespace.clock.sleeping == count:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{self.namespace.clock.sleeping} sleep, not {count}")

    async def note(
        self, text: str, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        """Submit a note."""
        return await self.http.post(f"{API}/jobs", json={"text": text, **fields}, headers=headers)

    async def search(self, query: str, **fields: Any) -> httpx.Response:
        """Search."""
        return await self.http.post(f"{API}/search", json={"query": query, **fields})

    async def raw(self, body: Mapping[str, Any], path: str = f"{API}/search") -> tuple[bytes, bool]:
        """Post JSON on a connection of its own: all bytes that come, and whether it ends with a reset."""
        port = httpx.URL(self.simulator.url).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = msgspec.json.encode(body)
        writer.write(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (path.encode(), len(data), data)
        )
        received = bytearray()
        try:
            async with asyncio.timeout(20):
                while piece := await reader.read(65_536):
                    received += piece
        except ConnectionResetError:
            return bytes(received), True
        else:
            return bytes(received), False
        finally:
            writer.close()
