"""Embedding without a running engine, for rebuilding or importing a database."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import repeat
from time import sleep
from typing import Self

import numpy as np

from kb_engine.embed.context import Passage, in_context
from kb_engine.embed.protocol import EmbedderUnavailable
from kb_engine.embed.registry import embedder_from
from kb_engine.index.port import Vectors
from kb_engine.settings import EngineSettings
from kb_engine.store.port import EmbedderIdentity

_WAITS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # pauses between attempts at one batch, in seconds


class OfflineEmbedder:
    """The configured embedder for blocking work, which outlasts an outage of a minute or two."""

    def __init__(self, settings: EngineSettings) -> None:
        """Raises as `embedder_from`."""
        self._embedder = embedder_from(settings.embedder, settings)
        self._threads = ThreadPoolExecutor(settings.ingest_workers)

    def __enter__(self) -> Self:
        """Load the model. Raises `EmbedderUnavailable`."""
        with ExitStack() as stack:
            stack.enter_context(closing(self._embedder))
            stack.enter_context(self._threads)
            self._embedder.load()
            self._opened = stack.pop_all()
        return self

    def __exit__(self, *_failed: object) -> None:
        self._opened.close()

    @property
    def identity(self) -> EmbedderIdentity:
        return EmbedderIdentity(self._embedder.name, self._embedder.dimensions, context=True)

    @property
    def max_tokens(self) -> int:
        return self._embedder.max_tokens

    def count_tokens(self, text: str) -> int:
        return self._embedder.count_tokens(text)

    def embed(self, passages: Sequence[Passage], *, context: bool = True) -> Vectors:
        """Return a vector for each passage, with its title and headings unless `context` is false.

        Raises:
            EmbedderUnavailable: an outage lasted too long.
            TextRefused: the embedder refuses a text.
        """
        size = self._embedder.batch_size
        slices = [passages[start : start + size] for start in range(0, len(passages), size)]
        if not slices:
            return np.empty((0, self._embedder.dimensions), np.float32)
        return np.concatenate(list(self._threads.map(self._embed_slice, slices, repeat(context))))

    def _in_context(self, passage: Passage) -> str:
        room = self._embedder.max_tokens - self._embedder.count_tokens(passage.text)
        return in_context(passage, lambda context: self._embedder.count_tokens(context) <= room)

    def _embed_slice(self, passages: Sequence[Passage], context: bool) -> Vectors:
        texts = [self._in_context(passage) if context else passage.text for passage in passages]
        for wait in _WAITS:
            try:
                return self._embedder.embed(texts)
            except EmbedderUnavailable as error:
                sleep(max(wait, error.retry_after))
        return self._embedder.embed(texts)
