"""From a text to its vectors: on every thread, in order, and no further than requested."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from itertools import count

import numpy as np
import pytest

from kb_engine.encoder import RETRY_SECONDS, Encoder
from kb_engine.index.port import Vectors
from kb_engine.ingest.pipeline import Pipeline
from kb_readers.model import Limits
from tests.support.eventually import eventually_async
from tests.support.ingesting import HELD, TestEmbedder
from tests.support.patience import ANSWER_SECONDS

PASSAGES = 30
TEXT = "\n\n".join(f"{number} {'granite quarry ' * 60}" for number in range(PASSAGES))


class Together(TestEmbedder):
    """Returns no result before two calls run, and the second call's result first."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = count(1)
        self._second = threading.Event()

    def embed(self, texts: Sequence[str]) -> Vectors:
        first = next(self._calls) == 1
        if first:
            assert self._second.wait(ANSWER_SECONDS)
        vectors = super().embed(texts)
        if not first:
            self._second.set()
        return vectors


@pytest.fixture
async def encoder(request: pytest.FixtureRequest) -> AsyncIterator[Encoder]:
    encoder = Encoder(request.param(), workers=2)
    yield encoder
    await encoder.close()


async def ignore(_step: str, _done: int, _total: int) -> None:
    pass


@pytest.mark.parametrize("encoder", [Together], indirect=True)
async def test_a_document_is_embedded_on_every_thread_and_its_vectors_keep_their_order(
    encoder: Encoder,
) -> None:
    prepared = await Pipeline(encoder, Limits()).note(TEXT, "title", ignore)
    assert len(prepared.chunks) == PASSAGES
    wanted = TestEmbedder().embed([f"title\n{piece.text}" for piece in prepared.chunks])
    np.testing.assert_array_equal(prepared.vectors, wanted)


@pytest.mark.parametrize("encoder", [TestEmbedder], indirect=True)
async def test_of_a_document_that_nobody_wants_no_more_is_embedded(encoder: Encoder) -> None:
    embedder = encoder.embedder
    assert isinstance(embedder, TestEmbedder)
    work = asyncio.create_task(Pipeline(encoder, Limits()).note(HELD + TEXT * 2, "title", ignore))
    assert await asyncio.to_thread(embedder.entered.wait, ANSWER_SECONDS)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    embedder.release.set()
    await encoder.close()
    assert len(embedder.texts) <= (encoder.device.threads + 1) * embedder.batch_size < 2 * PASSAGES


@pytest.mark.parametrize("encoder", [TestEmbedder], indirect=True)
async def test_slices_that_failed_together_wait_once_for_the_embedder(encoder: Encoder) -> None:
    embedder, pauses = encoder.embedder, list[float]()
    assert isinstance(embedder, TestEmbedder)
    embedder.failures = sys.maxsize

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await eventually_async(asyncio.all_tasks, lambda tasks: len(tasks) == 1, what="the end of the others")
        embedder.failures = 0

    prepared = await Pipeline(encoder, Limits(), pause=pause).note(TEXT, "title", ignore)
    assert (len(prepared.vectors), pauses) == (PASSAGES, [RETRY_SECONDS])


@pytest.mark.parametrize(("context", "expected"), [(True, "Bees\nWinter\nThey"), (False, "They")])
@pytest.mark.parametrize("encoder", [TestEmbedder], indirect=True)
async def test_a_passage_is_embedded_with_title_and_headings_but_in_an_old_base(
    encoder: Encoder, context: bool, expected: str
) -> None:
    assert isinstance(encoder.embedder, TestEmbedder)
    pipeline = Pipeline(encoder, Limits(), context=context)
    text = "# Winter\n\n" + "They shiver. " * 70 + "\n\n" + "They eat. " * 70
    prepared = await pipeline.note(text, "Bees", ignore)
    assert [piece.heading for piece in prepared.chunks] == ["Winter", "Winter"]
    assert encoder.embedder.texts[-1] == f"{expected}{prepared.chunks[-1].text[4:]}"
