"""A simulator on real sockets, in the loop of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.simulator.parts import Running, serving


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with serving(control=0) as running:
        yield running
