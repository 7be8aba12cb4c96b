"""A simulator on real sockets, in the loop of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from kb_simulator.harness.app import Simulator
from kb_simulator.settings import SimulatorSettings
from tests.unit.simulator.parts import Running


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with (
        Simulator(SimulatorSettings(port=0, control=0)) as simulator,
        # Without certificates to load, a client is made in a tenth of the time.
        httpx.AsyncClient(base_url=simulator.url, timeout=20, verify=False) as http,
    ):
        yield Running(simulator, http)
