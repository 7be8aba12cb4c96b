"""The indexes with data outside the store's database, each with its server side, which a test can disturb.

Qdrant runs over HTTP on its core, and on a real server if `QDRANT_URL` is set. The tests of Qdrant's index
itself, in `tests/unit/engine/index/qdrant`, are quick and need no other process; the tests with these
parameters are many.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import pytest

from kb_engine.index.port import IndexStats
from tests.support.remote_index import Server

if TYPE_CHECKING:
    from tests.support.qdrant import QdrantServer

FarServer: TypeAlias = "Server | QdrantServer"

QDRANT = tuple(
    pytest.param(kind, marks=pytest.mark.process)
    for kind in ("edge", *(["real"] if os.environ.get("QDRANT_URL") else []))
)
FAR = ("remote", *QDRANT)
"""Parameters of a fixture."""


@asynccontextmanager
async def far_away(kind: str) -> AsyncIterator[FarServer]:
    """The server side of an index."""
    if kind == "remote":
        yield Server()
        return
    # Imported for Qdrant alone, since it takes a second.
    from tests.support.qdrant import serving
    from tests.support.qdrant_cores import core_of

    async with serving(core_of(kind)) as server:
        yield server


async def stats_of(server: FarServer) -> IndexStats:
    index = server.index()
    try:
        return await index.stats()
    finally:
        await index.close()
