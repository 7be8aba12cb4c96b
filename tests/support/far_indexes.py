"""The indexes that keep their data for themselves, each with the other side, which can be disturbed.

Qdrant's runs over HTTP on two cores, and on a real server where `QDRANT_URL` names one. Its own tests, in
`tests/unit/engine/index/qdrant`, need no process of their own and are quick; these are many.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kb_engine.index.port import IndexStats
from tests.support.qdrant import QdrantServer, serving
from tests.support.qdrant_cores import REAL_URL, core_of
from tests.support.remote_index import Server
from tests.support.scope import rows

FarServer = Server | QdrantServer

QDRANT = tuple(
    pytest.param(kind, marks=pytest.mark.process)
    for kind in (*rows("edge", whole=["local"]), *(["real"] if REAL_URL else []))
)
"""Qdrant's core; in a whole run also the model in Python that its client has of it."""
FAR = ("remote", *QDRANT)
"""Parameters of a fixture."""


@asynccontextmanager
async def far_away(kind: str) -> AsyncIterator[FarServer]:
    """What is on the other side of an index."""
    if kind == "remote":
        yield Server()
        return
    async with serving(core_of(kind)) as server:
        yield server


async def stats_of(server: FarServer) -> IndexStats:
    """What it holds."""
    index = server.index()
    try:
        return await index.stats()
    finally:
        await index.close()
