"""The upkeep of a base on PostgreSQL in the background, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kb_engine.address import address_of
from kb_engine.store.postgres import postgres_store
from kb_engine.store.postgres.connection import Connections
from kb_engine.store.postgres.postgres_store import PostgresStore
from kb_engine.store.postgres.search import building, renewal
from tests.support.patience import ANSWER_SECONDS


class Nothing:
    """Connections and a database that accept every statement."""

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[Nothing]:
        yield self

    transaction = statements


class Outcomes(list[Exception | None]):
    """The outcomes of the next looks; without one a look sets `are_used` and never ends."""

    def __init__(self) -> None:
        super().__init__()
        self.are_used = asyncio.Event()


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Outcomes:
    outcomes = Outcomes()

    async def accepted(*_: object, **__: object) -> None:
        """Let it pass."""

    async def look(*_: object) -> None:
        if not outcomes:
            outcomes.are_used.set()
            await asyncio.Event().wait()
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    for module, name in ((building, "index_due"), (renewal, "renew_one")):
        monkeypatch.setattr(module, "expect_layout", accepted)
        monkeypatch.setattr(module, name, look)
    monkeypatch.setattr(renewal, "lock_base", accepted)
    monkeypatch.setattr(renewal, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(building, "CHECK_SECONDS", 0.0)
    return outcomes


async def test_an_unexpected_failure_does_not_end_the_upkeep_of_the_index(
    outcomes: Outcomes, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes += [ValueError("no version"), None]
    address = address_of("postgresql://kb@127.0.0.1/kb")
    keeping = asyncio.create_task(building.keep_index(cast("Any", Nothing()), address, "kb", 1, 1))
    await asyncio.wait_for(outcomes.are_used.wait(), ANSWER_SECONDS)
    keeping.cancel()
    assert [getattr(each, "why", "") for each in caplog.records] == ["no version"]


async def test_an_unexpected_failure_does_not_end_the_renewal_of_the_words(
    outcomes: Outcomes, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes += [ValueError("no word"), None]
    await renewal.keep_words(cast("Connections", Nothing()), 1)
    assert [getattr(each, "why", "") for each in caplog.records] == ["no word"]


async def test_an_unexpected_failure_does_not_end_the_listening(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures, connected = [ValueError("no event")], asyncio.Event()

    async def connect(*_: object, **__: object) -> None:
        if failures:
            raise failures.pop()
        connected.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(postgres_store, "connect", connect)
    monkeypatch.setattr(postgres_store, "_FIRST_WAIT", 0.0)
    store = cast("PostgresStore", SimpleNamespace(_address=""))
    listening = asyncio.create_task(PostgresStore._listen(store, lambda _event: True))
    await asyncio.wait(
        [listening, again := asyncio.create_task(connected.wait())], return_when="FIRST_COMPLETED"
    )
    assert again.done()
    listening.cancel()
    assert [getattr(each, "error", "") for each in caplog.records] == ["ValueError"]
