"""A cross-encoder on this machine, run by fastembed (`KB_RERANK_API=local`).

Two threads read the candidates, best first, until `KB_RERANK_TIMEOUT`. Passages that were not reached get the
relevance 0, so that they follow in the order of the search. The first passages of the engine are timed when
the model is loaded: `candidates` is as many as fit into the time-out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kb_engine.api.reranking import RerankFailed, logistic
from kb_engine.cores import CORES
from kb_engine.embed.fastembed_model import listed_model, prepare_runtime
from kb_engine.embed.own_model import PASSAGES, QUESTIONS
from kb_engine.model_files import ModelFolder
from kb_engine.rerank.rerank_settings import LOCAL, RerankSettings
from kb_engine.start_errors import DriverMissing

if TYPE_CHECKING:
    from fastembed.rerank.cross_encoder import TextCrossEncoder

_THREADS = min(2, CORES)
_TYPICAL_CHARS = 1_000  # length of a passage, in characters, by which the number of candidates is measured
_RESERVE = 0.8  # share of the time-out for which candidates are planned

logger = logging.getLogger(__name__)


class LocalReranker:
    """The cross-encoder of the settings. The constructor downloads its files unless they are there, and a
    thread of its own begins to load it. `clock` returns seconds, as `time.monotonic` does.

    Raises:
        SettingsError: fastembed has no such model.
        StartError: fastembed or the model is missing.
    """

    def __init__(
        self, settings: RerankSettings, models: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        encoder = _text_cross_encoder()
        model = listed_model(encoder.list_supported_models(), settings.model.strip(), "KB_RERANK_MODEL")
        self.candidates = 1
        self._name = model.name
        self._most = settings.candidates
        self._timeout = settings.timeout
        self._clock = clock
        self._folder = ModelFolder(model, models)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="rerank")
        self._loaded = self._threads.submit(self._load, encoder)

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """See `Reranker.scores`; the relevance of a passage that was not read in time is 0."""
        if not self._loaded.done():
            raise RerankFailed("The reranker is loading its model.")
        if (error := self._loaded.exception()) is not None:
            raise RerankFailed("The reranker cannot load its model; the log has the reason.") from error
        found = [0.0] * len(texts)
        waiting = deque(range(len(texts)))
        deadline = self._clock() + self._timeout
        work = partial(self._read, self._loaded.result(), query, texts, waiting, found, deadline)
        loop = asyncio.get_running_loop()
        try:
            await asyncio.gather(*(loop.run_in_executor(self._threads, work) for _ in range(_THREADS)))
        except asyncio.CancelledError:
            waiting.clear()  # the threads read no further
            raise
        except Exception as error:  # the boundary: the model's runtime has exceptions of its own
            waiting.clear()
            logger.exception("the reranker failed")
            raise RerankFailed("The reranker failed; the log has the reason.") from error
        if len(waiting) == len(texts) > 0:
            raise RerankFailed(f"The reranker did not read a passage within {self._timeout:g} s.")
        return found

    async def close(self) -> None:
        """Wait for the passages that are being read."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    def _read(
        self,
        model: TextCrossEncoder,
        query: str,
        texts: Sequence[str],
        waiting: deque[int],
        found: list[float],
        deadline: float,
    ) -> None:
        while self._clock() < deadline:
            try:
                place = waiting.popleft()
            except IndexError:
                return
            found[place] = _relevance(model, query, texts[place])

    def _load(self, encoder: type[TextCrossEncoder]) -> TextCrossEncoder:
        try:
            self._folder.check()
            model = encoder(
                self._name,
                threads=1,
                providers=["CPUExecutionProvider"],
                specific_model_path=str(self._folder.path),
            )
            passage = " ".join(PASSAGES)[:_TYPICAL_CHARS]
            _relevance(model, QUESTIONS[0], passage)  # the first run reserves memory
            begun = self._clock()
            _relevance(model, QUESTIONS[0], passage)
            each = max(self._clock() - begun, 1e-6)
        except Exception:  # a search keeps its original order
            logger.exception("the reranker cannot be loaded", extra={"model": self._name})
            raise
        self.candidates = max(1, min(self._most, int(_RESERVE * self._timeout * _THREADS / each)))
        measured = {"passage_ms": round(each * 1000, 1), "candidates": self.candidates}
        logger.info("reranker loaded", extra={"model": self._name, **measured})
        return model


def _relevance(model: TextCrossEncoder, query: str, text: str) -> float:
    (logit,) = model.rerank(query, [text])
    return logistic(logit)


def _text_cross_encoder() -> type[TextCrossEncoder]:
    prepare_runtime()
    try:
        from fastembed.rerank.cross_encoder import TextCrossEncoder
    except ImportError as error:
        raise DriverMissing(f"KB_RERANK_API={LOCAL}", "fastembed", "fastembed") from error
    return TextCrossEncoder
