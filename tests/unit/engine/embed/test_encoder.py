"""The embedder in its threads: queries first, one loading, and failures reported and retried."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from kb_contracts.api.errors import EngineError
from kb_engine import encoder as encoder_module
from kb_engine.embed.hashing import HashEmbedder
from kb_engine.embed.protocol import EmbedderUnavailable
from kb_engine.encoder import RETRY_SECONDS, EmbedderOutage, Encoder, Owner
from kb_engine.index.port import Vectors
from tests.support.ingesting import HELD, TestEmbedder
from tests.support.patience import ANSWER_SECONDS


class Loading(HashEmbedder):
    loaded = False

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.attempts = 0

    def load(self) -> None:
        self.attempts += 1
        if self.attempts <= self.failures:
            raise EmbedderUnavailable("the weights are missing")
        self.loaded = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def held() -> AsyncIterator[tuple[Encoder, TestEmbedder]]:
    embedder = TestEmbedder()
    encoder = Encoder(embedder, workers=1)
    yield encoder, embedder
    embedder.release.set()
    await encoder.close()


async def test_a_query_does_not_wait_for_passages(held: tuple[Encoder, TestEmbedder]) -> None:
    encoder, embedder = held
    passages = [asyncio.create_task(encoder.passages([HELD], Owner())) for _ in range(2)]
    assert await asyncio.to_thread(embedder.entered.wait, ANSWER_SECONDS)
    async with asyncio.timeout(ANSWER_SECONDS):
        vector = await encoder.query("granite")
    assert vector.shape == (encoder.model.dimensions,)
    embedder.release.set()
    assert [len(await task) for task in passages] == [1, 1]


async def test_a_short_note_does_not_wait_for_a_book(held: tuple[Encoder, TestEmbedder]) -> None:
    encoder, embedder = held
    for short in (False, True):
        embedder.entered.clear()
        embedder.release.clear()
        passages = [asyncio.create_task(encoder.passages([HELD], Owner(short=short))) for _ in range(2)]
        assert await asyncio.to_thread(embedder.entered.wait, ANSWER_SECONDS)
        async with asyncio.timeout(ANSWER_SECONDS):
            assert len(await encoder.passages(["granite"], Owner(short=not short))) == 1
        assert not any(task.done() for task in passages)
        embedder.release.set()
        await asyncio.gather(*passages)


async def test_callers_take_turns_with_every_slice(held: tuple[Encoder, TestEmbedder]) -> None:
    """A caller with more slices waits behind the other callers for its next one."""
    encoder, embedder = held
    first = asyncio.create_task(encoder.passages([HELD], Owner("ann")))
    assert await asyncio.to_thread(embedder.entered.wait, ANSWER_SECONDS)
    waiting = [
        asyncio.create_task(encoder.passages([text], Owner(text[:3]))) for text in ("ann 1", "ann 2", "ben 1")
    ]
    given_up = asyncio.create_task(encoder.passages(["cem 1"], Owner("cem")))
    await asyncio.sleep(0)  # until all are queued
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    embedder.release.set()
    await asyncio.gather(first, *waiting)
    assert embedder.texts == [HELD, "ben 1", "ann 1", "ann 2"]


@pytest.mark.skipif(sys.platform != "linux", reason="only there has a thread a priority of its own")
async def test_passages_are_made_at_a_lower_priority(held: tuple[Encoder, TestEmbedder]) -> None:
    encoder, _ = held

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    own = niceness()
    assert await encoder.in_background(Owner(), niceness) == min(19, own + 10)
    assert await encoder.in_background(Owner(short=True), niceness) == min(19, own + 5)
    assert niceness() == own


async def test_callers_at_once_share_one_loading() -> None:
    embedder = Loading(failures=0)
    encoder = Encoder(embedder, workers=1)
    encoder.begin_loading()
    await asyncio.gather(*(encoder.load() for _ in range(5)))
    await encoder.load()
    assert embedder.attempts == 1
    await encoder.close()


async def test_a_failed_loading_is_told_and_tried_again_later() -> None:
    """There is a pause, so that a broken installation is not read again for every search."""
    embedder, clock = Loading(failures=1), Clock()
    encoder = Encoder(embedder, workers=1, clock=clock)
    for _ in range(3):
        with pytest.raises(EngineError, match="the weights are missing") as raised:
            await encoder.query("granite")
        assert raised.value.code == "embedder_unavailable"
    assert (embedder.attempts, encoder.failure) == (1, "the weights are missing")
    clock.now = RETRY_SECONDS
    await encoder.query("granite")
    assert (embedder.attempts, encoder.failure, encoder.model.loaded) == (2, None, True)
    await encoder.close()


async def test_a_caller_that_gives_up_does_not_end_the_loading() -> None:
    """Other callers still get the model."""
    embedder = Loading(failures=0)
    encoder = Encoder(embedder, workers=1)
    impatient = asyncio.create_task(encoder.load())
    patient = asyncio.create_task(encoder.load())
    await asyncio.sleep(0)
    impatient.cancel()
    await patient
    assert embedder.attempts == 1
    await encoder.close()


async def test_an_embedder_that_rests_is_not_asked(held: tuple[Encoder, TestEmbedder]) -> None:
    """It pauses for the time that it asked for; a call meanwhile fails at once with the time left."""
    embedder, clock = TestEmbedder(), Clock()
    encoder = Encoder(embedder, workers=1, clock=clock)
    embedder.failures, embedder.rest = 1, 40.0
    for now, left in ((0.0, 40.0), (30.0, 10.0)):
        clock.now = now
        with pytest.raises(EmbedderOutage) as raised:
            await encoder.query("granite")
        assert (raised.value.seconds, raised.value.members["retry_after"]) == (left, left)
    assert embedder.texts == ["granite"]
    clock.now = 40.0
    await encoder.query("granite")
    assert encoder.failure is None
    await encoder.close()


@pytest.mark.parametrize("loaded", [True, False])
async def test_a_status_request_retries_an_unused_failed_embedder(loaded: bool) -> None:
    embedder, clock = Loading(failures=1), Clock()
    encoder = Encoder(embedder, workers=1, clock=clock)
    encoder.begin_recovery()
    assert embedder.attempts == 0
    with pytest.raises(EmbedderOutage):
        await encoder.load()
    embedder.loaded = loaded
    encoder.begin_recovery()
    assert encoder.failure == "the weights are missing"
    clock.now = RETRY_SECONDS
    encoder.begin_recovery()
    encoder.begin_recovery()
    await encoder.close()  # waits for the attempt
    assert (embedder.attempts, encoder.failure) == (1 if loaded else 2, None)


async def test_a_failed_recovery_is_told_as_before(held: tuple[Encoder, TestEmbedder]) -> None:
    """No caller waits for it, so it raises nothing."""
    encoder, embedder = held
    embedder.failures = 2
    with pytest.raises(EmbedderOutage):
        await encoder.query("granite")
    encoder.begin_recovery()
    await encoder.close()
    assert (embedder.failures, encoder.failure) == (0, "out of order")


async def test_only_long_queries_wake_a_thread_for_an_embedder_that_is_quick() -> None:
    threads: list[int] = []

    class Noting(HashEmbedder):
        def embed(self, texts: Sequence[str]) -> Vectors:
            threads.append(threading.get_ident())
            return super().embed(texts)

    encoder = Encoder(Noting(), workers=1)
    for chars in (Noting.quick_chars, Noting.quick_chars + 1):
        await encoder.query("b" * chars)
    await encoder.close()
    assert [thread == threading.get_ident() for thread in threads] == [True, False]


async def test_the_vectors_of_the_last_queries_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    embedded: list[str] = []

    class Noting(HashEmbedder):
        quick_chars = 0

        def embed_query(self, text: str) -> NDArray[np.float32]:
            embedded.append(text)
            return super().embed_query(text)

    monkeypatch.setattr(encoder_module, "_KEPT_QUERIES", 2)
    encoder = Encoder(Noting(), workers=1)
    long = "granite " * 1_000
    vectors = [await encoder.query(text) for text in ("a", "b", "a", "c", "a", "b", long, long)]
    assert [await encoder.probe(), await encoder.probe()] == [True, True]
    await encoder.close()
    assert embedded == ["a", "b", "c", "b", long, long, "kb", "kb"]
    assert vectors[0] is vectors[2] is vectors[4]
    assert not vectors[0].flags.writeable
