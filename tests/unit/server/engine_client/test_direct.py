"""The engine called in the same process: the same responses, errors and files as over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kb_contracts.api import models as m
from kb_contracts.api.operations import (
    ADD_TAGS,
    CLEAR_DOCUMENTS,
    CREATE_JOB,
    DELETE_DOCUMENT,
    GET_DOCUMENT,
    GET_JOB,
    GET_STATUS,
    LIST_DOCUMENTS,
    LIST_TAGS,
    OPERATIONS,
    PATCH_NOTE,
    REMOVE_TAG,
    SEARCH,
    DocumentQuery,
    DocumentsQuery,
    TagsQuery,
)
from kb_contracts.api.ragler import LIMITS, VectorSearchRequest
from kb_engine.app import CALLS
from kb_engine.serving import running
from kb_engine.settings import EngineSettings
from kb_http.direct import DirectCalls
from kb_http.mount import build_application
from kb_http.requests import Incoming
from kb_server.engine_client.client import HttpEngine
from kb_server.engine_client.direct import DirectExchange
from kb_server.engine_client.errors import (
    EngineBadAnswer,
    EngineFailed,
    EngineFault,
    EngineTimeout,
    EngineUnreachable,
    Refused,
)
from kb_server.engine_client.port import USER, FileSource
from kb_server.engine_client.ragler_http import HttpRagler
from kb_server.engine_client.transport import RetryPolicy
from tests.support.eventually import eventually_async
from tests.support.loop_clock import advance_loop, turns
from tests.support.patience import ANSWER_SECONDS, SILENCE

KEY = "secret"
URL = "http://engine:8000"
ONCE = RetryPolicy(attempts=1)
NOBODY = "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"


@dataclass(frozen=True)
class Both:
    """One engine, and its clients: over HTTP, and in process."""

    http: HttpEngine
    direct: HttpEngine
    raglers: tuple[HttpRagler, HttpRagler]
    spool: Path


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Both]:
    settings = EngineSettings(
        home=tmp_path,
        port=0,
        embedder="hash",
        ingest_workers=1,
        api_key=KEY,
        max_upload_bytes=1 << 20,
        keep_originals=True,
    )
    async with running(settings) as (url, app):
        exchange = DirectExchange(app[CALLS], url)
        made = Both(
            HttpEngine(url, KEY, policy=ONCE),
            HttpEngine(url, KEY, policy=ONCE, exchange=exchange),
            (HttpRagler(url, KEY), HttpRagler(url, KEY, exchange=exchange)),
            settings.spool_folder,
        )
        yield made
        for client in (made.http, made.direct, *made.raglers):
            await client.close()


async def note(engine: HttpEngine, text: str = "Bees keep warm in a cluster.") -> m.Document:
    job = await engine.call(CREATE_JOB, body=m.NoteRequest(text=text, tags=["collection:memory", "bees"]))
    ended = await engine.wait_for_job(job.id, ANSWER_SECONDS)
    assert ended.document_id is not None
    return await engine.call(GET_DOCUMENT, path={"document_id": ended.document_id})


@pytest.mark.requirement("R83")
async def test_a_document_lives_in_one_process_as_over_http(both: Both) -> None:
    """Each response equals that of the other client."""
    direct, http = both.direct, both.http
    made = await note(direct)
    path = {"document_id": made.id}
    assert made == await http.call(GET_DOCUMENT, path=path)
    tagged = await direct.call(ADD_TAGS, path=path, body=m.TagsRequest(tags=["ü % +"]), if_match=1)
    assert await direct.call(REMOVE_TAG, path={**path, "tag": "ü % +"}) != tagged
    patched = await direct.call(PATCH_NOTE, path=path, body=m.NotePatch(text="Ants dig."))
    assert isinstance(patched, m.Document)
    listed = DocumentsQuery(tag="bees", limit=5)
    for operation, content in (
        (SEARCH, {"body": m.SearchRequest(query="what do ants do", tags=["bees"])}),
        (LIST_DOCUMENTS, {"query": listed}),
        (LIST_TAGS, {"query": TagsQuery(limit=1)}),
        (GET_DOCUMENT, {"path": path, "query": DocumentQuery(text=True)}),
    ):
        here, there = [await client.call(operation, **content) for client in (direct, http)]
        for answer in (here, there):
            if isinstance(answer, m.SearchResponse):
                answer.took_ms = 0
        assert here == there
    assert await direct.unready() is None
    assert (await direct.call(DELETE_DOCUMENT, path=path)).documents == 1


async def test_raglers_operations_work_in_one_process(both: Both) -> None:
    await note(both.direct)
    http, direct = both.raglers
    assert await direct.collections() == await http.collections()
    (collection,) = await direct.collections()
    assert await direct.collection(collection.id) == await http.collection(collection.id)
    request = VectorSearchRequest(query="bees", collection_id=collection.id)
    assert (await direct.search(request)).results == (await http.search(request)).results
    assert await direct.reachable()


Call = Callable[[HttpEngine], Awaitable[Any]]


def text_file(size: int, *, filename: str = "a.txt") -> FileSource:
    async def blocks() -> AsyncIterator[bytes]:
        for start in range(0, size, 1 << 16):
            yield b"x" * min(1 << 16, size - start)

    return FileSource(filename, size, blocks)


REFUSED: dict[str, Call] = {
    "no such document": lambda engine: engine.call(GET_DOCUMENT, path={"document_id": 99}),
    "no such job": lambda engine: engine.call(GET_JOB, path={"job_id": NOBODY}),
    "a path that is none": lambda engine: engine.call(GET_JOB, path={"job_id": "x"}),
    "a step in a path": lambda engine: engine.call(REMOVE_TAG, path={"document_id": 1, "tag": ".."}),
    "half a surrogate pair": lambda engine: engine.call(SEARCH, body=m.SearchRequest(query="\ud800")),
    "half a pair in a query": lambda engine: engine.call(
        LIST_DOCUMENTS, query=DocumentsQuery(tag="a\ud800b")
    ),
    "a body that does not fit": lambda engine: engine.call(SEARCH, body=m.SearchRequest(query="x", top=-1)),
    "a query that does not fit": lambda engine: engine.call(LIST_TAGS, query=TagsQuery(limit=0)),
    "no confirmation": lambda engine: engine.call(CLEAR_DOCUMENTS),
    "another version": lambda engine: engine.call(
        ADD_TAGS, path={"document_id": 1}, body=m.TagsRequest(tags=["x"]), if_match=7
    ),
    "a key that is none": lambda engine: engine.call(
        CREATE_JOB, body=m.NoteRequest(text="x"), idempotency_key="k" * 256
    ),
    "a key of another request": lambda engine: engine.call(
        CREATE_JOB, body=m.NoteRequest(text="other"), idempotency_key="used"
    ),
    "a body that is too large": lambda engine: engine.call(
        CREATE_JOB, body=m.NoteRequest(text="x" * (9 << 20))
    ),
    "too many values": lambda engine: engine.call(
        CREATE_JOB, body=m.NoteRequest(text="x", metadata={"a": [1] * 100_001})
    ),
    "a kind of file that is not taken": lambda engine: engine.send_file(
        text_file(9, filename="a.exe"), m.FileFields()
    ),
    "a file that is too large": lambda engine: engine.send_file(text_file(2 << 20), m.FileFields()),
    "a file without a name": lambda engine: engine.send_file(text_file(9, filename="/"), m.FileFields()),
    "a field that does not fit": lambda engine: engine.send_file(
        text_file(9), m.FileFields(title="x" * 10_000)
    ),
    "a field that is too large": lambda engine: engine.send_file(
        text_file(9), m.FileFields(metadata={"a": "x" * 300_000})
    ),
}


async def test_direct_calls_and_http_refuse_with_the_same_fault(
    both: Both, subtests: pytest.Subtests
) -> None:
    await note(both.http)
    await both.http.call(CREATE_JOB, body=m.NoteRequest(text="one"), idempotency_key="used")
    for name, call in REFUSED.items():
        with subtests.test(name):
            faults = []
            for client in (both.http, both.direct):
                with pytest.raises(EngineFault) as raised:
                    await call(client)
                faults.append((type(raised.value), vars(raised.value)))
            assert faults[0] == faults[1]
            assert faults[0][0] is Refused
            assert not any(both.spool.iterdir())


async def test_direct_calls_refuse_a_user_with_a_line_break(both: Both) -> None:
    token = USER.set("a\r\nb")
    with pytest.raises(Refused, match="line break"):
        await both.direct.call(CREATE_JOB, body=m.NoteRequest(text="x"))
    USER.reset(token)


async def test_a_retry_is_known_whichever_way_it_comes(both: Both) -> None:
    jobs = [
        await client.send_file(text_file(70_000), m.FileFields(title="t"), idempotency_key="k")
        for client in (both.direct, both.http)
    ]
    assert jobs[0].id == jobs[1].id


async def test_two_requests_of_one_key_never_run_at_once(both: Both) -> None:
    """One is still being sent in process, the other comes over HTTP."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def held() -> AsyncIterator[bytes]:
        begun.set()
        await go_on.wait()
        yield b"text"

    sending = asyncio.create_task(
        both.direct.send_file(FileSource("a.txt", 4, held), m.FileFields(), idempotency_key="k")
    )
    await begun.wait()
    with pytest.raises(Refused) as refused:
        await both.http.call(CREATE_JOB, body=m.NoteRequest(text="x"), idempotency_key="k")
    assert refused.value.reason == "in_progress"
    go_on.set()
    await sending


async def test_calls_of_both_ways_are_counted_together(both: Both) -> None:
    for number in range(LIMITS["listCollections"]):
        await both.raglers[number % 2].collections()
    for client in both.raglers:
        with pytest.raises(EngineFault, match="calls of"):
            await client.collections()


# --- files ----------------------------------------------------------------------------------------


async def test_a_file_that_breaks_off_is_our_own_fault_and_leaves_nothing(both: Both) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise OSError(5, "Input/output error")

    for source, words in (
        (FileSource("a.txt", 2, broken), "Input/output error"),
        (FileSource("a.txt", 9, text_file(2).blocks), "2 bytes instead of 9"),
    ):
        with pytest.raises(OSError, match=words):
            await both.direct.send_file(source, m.FileFields())
        assert not any(both.spool.iterdir())


async def test_an_upload_that_is_given_up_leaves_nothing(both: Both) -> None:
    begun = asyncio.Event()
    closed: list[str] = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
                begun.set()
                await asyncio.sleep(0)
        finally:
            closed.append("file")

    sending = asyncio.create_task(
        both.direct.send_file(FileSource("a.txt", 9 << 20, endless), m.FileFields())
    )
    await begun.wait()
    assert any(both.spool.iterdir())
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await eventually_async(lambda: closed, what="the end of the file")
    assert not any(both.spool.iterdir())


# --- a slow engine ----------------------------------------------------------------------------------


class Slow:
    """Handlers that wait until they are released."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.begun: list[str] = []
        self.ended: list[str] = []

    async def handle(self, incoming: Incoming) -> msgspec.Struct:
        self.begun.append(incoming.operation.id)
        await self.go_on.wait()
        self.ended.append(incoming.operation.id)
        return m.Removed(documents=1, chunks=1, bytes=1)


@asynccontextmanager
async def before(slow: Slow, **options: Any) -> AsyncIterator[tuple[HttpEngine, DirectCalls]]:
    app = build_application({each.id: slow.handle for each in OPERATIONS})
    calls = DirectCalls(app)
    client = HttpEngine(URL, policy=ONCE, exchange=DirectExchange(calls, URL), **options)
    yield client, calls
    slow.go_on.set()
    await calls.close(app)


async def test_a_caller_that_leaves_stops_nothing_that_has_begun() -> None:
    slow = Slow()
    async with before(slow) as (client, _):
        call = asyncio.create_task(client.call(GET_STATUS))
        await eventually_async(lambda: slow.begun)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert slow.ended == ["getStatus"]


async def test_silence_is_a_timeout() -> None:
    slow = Slow()
    async with before(slow, read_timeout=SILENCE) as (client, _):
        with pytest.raises(EngineTimeout, match=r"It sent no data for 0\.05 s\."):
            await client.call(GET_STATUS)
    assert slow.ended == ["getStatus"]


async def test_an_upload_may_take_longer_than_the_silence_while_it_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = advance_loop(monkeypatch)

    async def drips() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x"
            await turns()
            advance(0.75 * ANSWER_SECONDS)
            await turns()

    async with running(EngineSettings(home=tmp_path, port=0, embedder="hash")) as (url, app):
        client = HttpEngine(
            url, policy=ONCE, exchange=DirectExchange(app[CALLS], url), read_timeout=ANSWER_SECONDS
        )
        assert (await client.send_file(FileSource("a.txt", 3, drips), m.FileFields())).status == "queued"


async def test_an_engine_that_stops_lets_calls_end_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kb_http.direct._ENDING_SECONDS", 0.01)
    slow = Slow()
    app = build_application({each.id: slow.handle for each in OPERATIONS})
    calls = DirectCalls(app)
    client = HttpEngine(URL, policy=ONCE, exchange=DirectExchange(calls, URL))
    call = asyncio.create_task(client.call(GET_STATUS))
    await eventually_async(lambda: slow.begun)
    await calls.close(app)
    with pytest.raises(EngineUnreachable, match="stopped"):
        await call
    assert slow.ended == []


async def test_a_failure_of_the_engine_is_told_without_its_words() -> None:
    async def fail(_incoming: Incoming) -> msgspec.Struct:
        raise ValueError("a detail of the store")

    app = build_application({each.id: fail for each in OPERATIONS})
    client = HttpEngine(URL, policy=ONCE, exchange=DirectExchange(DirectCalls(app), URL))
    with pytest.raises(EngineFailed) as failed:
        await client.call(GET_STATUS)
    assert "detail" not in failed.value.detail
    assert "its log says why" in failed.value.detail


async def test_a_file_that_is_kept_comes_back_without_a_socket(both: Both) -> None:
    """Block by block, on demand; a missing file gives the same refusal."""
    data = bytes(range(32, 127)) * 2_500

    async def blocks() -> AsyncIterator[bytes]:
        yield data

    job = await both.direct.send_file(FileSource("a.txt", len(data), blocks), m.FileFields())
    ended = await both.direct.wait_for_job(job.id, ANSWER_SECONDS)
    document = await both.direct.call(GET_DOCUMENT, path={"document_id": ended.document_id})
    for engine in (both.direct, both.http):
        async with engine.original(document) as content:
            assert b"".join([block async for block in content.blocks]) == data
        async with engine.original(document) as content:
            assert data.startswith(await anext(content.blocks))
        async with engine.original(await note(engine)) as content:
            with pytest.raises(Refused) as caught:
                await anext(content.blocks)
        assert caught.value.reason == "original_not_kept"


async def test_a_file_that_is_cut_is_a_fault_without_a_socket_too(both: Both, tmp_path: Path) -> None:
    data = b"granite " * 30_000

    async def blocks() -> AsyncIterator[bytes]:
        yield data

    job = await both.direct.send_file(FileSource("a.txt", len(data), blocks), m.FileFields())
    ended = await both.direct.wait_for_job(job.id, ANSWER_SECONDS)
    document = await both.direct.call(GET_DOCUMENT, path={"document_id": ended.document_id})
    (file,) = (tmp_path / "engine" / "kb.sqlite.originals").iterdir()
    file.write_bytes(data[:120_000])
    async with both.direct.original(document) as content:
        with pytest.raises(EngineBadAnswer, match="broke off"):
            assert [block async for block in content.blocks]
