"""An embedding endpoint on loopback that fails on command, with OpenAI's API.

It serves from its own thread, so that tests with and without an event loop can use it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from kb_engine.embed.hashing import HashEmbedder
from kb_engine.embed.openai.embedder import OpenAIEmbedder
from kb_engine.embed.openai.openai_settings import OpenAISettings
from kb_load.processes import free_port
from tests.support.patience import ANSWER_SECONDS, SILENCE

Json = dict[str, Any]
Fault = Callable[[web.Request, Json], Awaitable[web.StreamResponse | None]]
"""Replaces the response of an endpoint; if it returns None, the endpoint answers as usual."""

MODEL = "hashing"


class EmbeddingEndpoint:
    """Serves vectors of `embed` under `url`; `requests` holds the bodies received.

    `key`: the required bearer key. `fault`: replaces the response. `shape` changes a response before it is
    sent. Requests with a text that contains `held` are answered after `release`, those for other texts at
    once. It can `stop` and `start` again on the same port.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.requests: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.key = ""
        self.fault: Fault | None = None
        self.held = ""
        self._released = asyncio.Event()
        self.shape: Callable[[Json], Any] = lambda answer: answer
        self.embed: Callable[[Sequence[str]], NDArray[np.float32]] = HashEmbedder().embed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="endpoint", daemon=True)
        self._runner: web.AppRunner | None = None
        self._thread.start()

    @property
    def settings(self) -> Json:
        return {"embedder": "openai", "embedding_url": self.url, "embedding_model": MODEL}

    @property
    def environment(self) -> dict[str, str]:
        return {"KB_EMBEDDER": "openai", "KB_EMBEDDING_URL": self.url, "KB_EMBEDDING_MODEL": MODEL}

    def texts(self) -> list[str]:
        return [text for request in self.requests for text in request["input"]]

    def start(self) -> None:
        self._do(self._start())

    def stop(self) -> None:
        """Stop listening, and close open connections."""
        self._do(self._stop())

    def release(self) -> None:
        """Answer the held requests, and hold no more."""
        self._loop.call_soon_threadsafe(self._released.set)

    def close(self) -> None:
        """Stop permanently."""
        self.stop()
        self._do(_drop_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_SECONDS)
        self._loop.close()

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_SECONDS)

    async def _start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/embeddings", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=SILENCE)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.requests.append(asked)
        self.headers.append(dict(request.headers))
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return told(401, "Incorrect API key provided")
        if self.fault is not None and (instead := await self.fault(request, asked)) is not None:
            return instead
        if self.held and any(self.held in text for text in asked["input"]):
            await self._released.wait()
        vectors = self.embed(asked["input"])
        data = [{"object": "embedding", "index": i, "embedding": v.tolist()} for i, v in enumerate(vectors)]
        answer = {"object": "list", "model": asked["model"], "data": data}
        return web.Response(text=json.dumps(self.shape(answer)), content_type="application/json")


async def _drop_all() -> None:
    """Cancel handlers that still run although their client has gone."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def told(status: int, words: str, **headers: str) -> web.Response:
    return web.json_response({"error": {"message": words}}, status=status, headers=headers)


def always(status: int, words: str = "no", **headers: str) -> Fault:

    async def fault(_request: web.Request, _asked: Json) -> web.StreamResponse:
        return told(status, words, **headers)

    return fault


def longer_than(most: int, status: int = 400, words: str = "maximum context length") -> Fault:

    async def fault(_request: web.Request, asked: Json) -> web.StreamResponse | None:
        return told(status, words) if any(len(text) > most for text in asked["input"]) else None

    return fault


def containing(word: str, status: int) -> Fault:
    """A fault: a request with a text that contains `word` gets an error which quotes the text."""

    async def fault(_request: web.Request, asked: Json) -> web.StreamResponse | None:
        found = [text for text in asked["input"] if word in text]
        return told(status, f"cannot embed {found[0]}") if found else None

    return fault


async def hanging(_request: web.Request, _asked: Json) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("an event that nobody sets")


@contextmanager
def endpoint() -> Iterator[EmbeddingEndpoint]:
    serving = EmbeddingEndpoint()
    serving.start()
    try:
        yield serving
    finally:
        serving.close()


@contextmanager
def asking(served: EmbeddingEndpoint, **settings: Any) -> Iterator[OpenAIEmbedder]:
    chosen = {
        "embedding_url": served.url,
        "embedding_model": MODEL,
        "embedding_timeout": ANSWER_SECONDS,
        **settings,
    }
    with closing(OpenAIEmbedder(OpenAISettings(**chosen))) as embedder:
        yield embedder
