"""Containers killed, disconnected and restarted while agents write: acknowledged data exist once."""

from __future__ import annotations

import base64
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.integration.conftest import Images, Report
from tests.integration.containers import Engine, Lab, Server, error_of, served
from tests.support.eventually import eventually
from tests.support.mcp_http import Caller
from tests.support.patience import ANSWER_SECONDS, JOB_SECONDS, SILENCE

WRITERS = 4
NOTES_EACH = 30
FILES_EACH = 8
KILLS = 2
TRIES = 200
MEANWHILE = {"engine_unreachable", "engine_timeout", "engine_failed", "engine_busy"}


@dataclass
class History:
    """The answers to agents. Writers append from several threads."""

    acknowledged: dict[str, str] = field(default_factory=dict)
    """The acknowledged job for each word's document."""
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Writer(threading.Thread):
    """An agent that adds notes and files, and repeats refused calls until all are accepted."""

    def __init__(self, caller: Caller, history: History, words: list[str], files: list[str]) -> None:
        super().__init__(daemon=True)
        self._caller, self._history = caller, history
        self._words, self._files = words, files
        self._again = threading.Event()

    def run(self) -> None:
        try:
            for word in self._words:
                self._until_taken(word, partial(self._note, word))
            for word in self._files:
                self._file(word)
        except Exception as error:  # noqa: BLE001  # a thread's exception would be lost; the test reads it
            self._history.wrong.append(repr(error))

    def _note(self, word: str) -> dict[str, Any]:
        return self._caller.call("kb_addnote", text=text_of(word), collection="load")

    def _file(self, word: str) -> None:
        data = f"# File {word}\n\n{text_of(word)}\n".encode()
        start = self._caller.ok("kb_upload_start", filename=f"{word}.md", total_size=len(data))
        upload = start["upload_id"]
        chunk = base64.b64encode(data).decode()
        self._caller.ok("kb_upload_chunk", upload_id=upload, chunk_index=0, data=chunk)
        self._until_taken(word, lambda: self._caller.call("kb_upload_finish", upload_id=upload))

    def _until_taken(self, word: str, call: Callable[[], dict[str, Any]]) -> None:
        for _ in range(TRIES):
            result = call()
            if not result.get("isError"):
                self._history.acknowledged[word] = result["structuredContent"]["job_id"]
                return
            self._history.refused[error_of(result)] += 1
            self._again.wait(SILENCE)
        raise AssertionError(f"{word} was refused {TRIES} times")


def reached(enough: int) -> Callable[[int], bool]:
    return lambda number: number >= enough


def text_of(word: str) -> str:
    """A note with a unique word, long enough for a kill to hit a running job."""
    return f"{word} " + " ".join(f"filling{number}of{word}" for number in range(200))


@pytest.mark.process
def test_kills_of_the_engine_lose_and_duplicate_no_acknowledged_document(
    images: Images, workshop: Lab, report: Report
) -> None:
    network = workshop.network()
    engine = Engine(images.engine, network, volume=workshop.volume(), KB_EMBEDDER="hash")
    server = Server(images.server, network)
    workshop.ready(engine, server)

    history, words = (
        History(),
        [[f"w{uuid4().hex}" for _ in range(NOTES_EACH + FILES_EACH)] for _ in range(WRITERS)],
    )
    writers = [Writer(server.caller(), history, each[:NOTES_EACH], each[NOTES_EACH:]) for each in words]
    for writer in writers:
        writer.start()
    total = WRITERS * (NOTES_EACH + FILES_EACH)
    for kill in range(1, KILLS + 1):
        enough = total * kill // (KILLS + 1)
        eventually(
            lambda: len(history.acknowledged),
            reached(enough),
            what=f"{enough} acknowledged writes",
        )
        engine.kill()
        engine.start_again()
        engine.until_ready()
    for writer in writers:
        writer.join(ANSWER_SECONDS)
    assert history.wrong == []
    assert len(history.acknowledged) == total
    assert set(history.refused) <= MEANWHILE

    engine.until_idle()
    found = {word: engine.documents_with(word) for word in history.acknowledged}
    report.tell(
        f"engine killed {KILLS} times under load: {total} writes acknowledged, "
        f"{history.refused.total()} refused meanwhile and sent again, "
        f"{sum(map(bool, found.values()))} found, {sum(len(ids) > 1 for ids in found.values())} doubled"
    )
    assert {word: ids for word, ids in found.items() if len(ids) != 1} == {}
    for word, job in history.acknowledged.items():
        assert engine.get(f"/jobs/{job}")["document_id"] == found[word][0]
    assert engine.get("/documents")["total"] == total


@pytest.mark.requirement("K39", "K40", "K42")
@pytest.mark.parametrize("end", ["restart", "kill"])
def test_an_upload_is_lost_with_the_servers_restart_and_the_agent_is_told(
    images: Images, workshop: Lab, end: str
) -> None:
    """Its id is not found, with advice; no data stay on disk; a new upload succeeds."""
    network = workshop.network()
    engine = Engine(images.engine, network, KB_EMBEDDER="hash")
    server = Server(images.server, network, volume=workshop.volume())
    workshop.ready(engine, server)
    data, caller = b"# Lost\n\nhalf of it\n" * 1000, server.caller()
    start = caller.ok("kb_upload_start", filename="lost.md", total_size=len(data))
    half = base64.b64encode(data[: len(data) // 2]).decode()
    caller.ok("kb_upload_chunk", upload_id=start["upload_id"], chunk_index=0, data=half)
    assert "chunk-" in staged(server)

    if end == "kill":
        server.kill()
        server.start_again()
    else:
        server.restart()
    server.until_ready()
    again = server.caller()
    for tool, rest in (("kb_upload_chunk", {"chunk_index": 1, "data": half}), ("kb_upload_finish", {})):
        refused = again.refused(tool, upload_id=start["upload_id"], **rest)
        assert refused["error"] == "upload_not_found"
        assert "kb_upload_start" in refused["message"]
    assert httpx.put(start["upload_url"], content=data, timeout=ANSWER_SECONDS).status_code == 404
    assert "chunk-" not in staged(server)
    assert start["upload_id"] not in staged(server)

    whole = again.ok("kb_upload_start", filename="whole.md", total_size=len(data))
    assert httpx.put(whole["upload_url"], content=data, timeout=ANSWER_SECONDS).is_success
    job = again.ok("kb_upload_finish", upload_id=whole["upload_id"])["job_id"]
    assert again.ok("kb_jobs", job_id=job, wait_seconds=JOB_SECONDS)["jobs"][0]["status"] == "completed"


def staged(server: Server) -> str:
    return server.run("sh", "-c", "find /data -mindepth 1")


@pytest.mark.requirement("K7")
def test_a_cut_network_is_told_and_mends_by_itself(images: Images, workshop: Lab) -> None:
    """Calls fail within a time limit; a staged upload is finished later; nothing is duplicated."""
    network = workshop.network()
    engine = Engine(images.engine, network, volume=workshop.volume(), KB_EMBEDDER="hash")
    server = Server(images.server, network, REQUEST_TIMEOUT="3000")
    workshop.ready(engine, server)
    caller = server.caller()
    before = caller.ok("kb_addnote", text="before the cut", wait_seconds=JOB_SECONDS)
    data = b"# Tide\n\nStaged while the engine was away.\n"
    with engine.cut_off():
        for tool, arguments in (("kb_search", {"query": "cut"}), ("kb_addnote", {"text": "during the cut"})):
            assert caller.refused(tool, **arguments)["error"] in {"engine_unreachable", "engine_timeout"}
        assert server.answer("/healthz") == 200
        start = caller.ok("kb_upload_start", filename="tide.md", total_size=len(data))
        chunk = base64.b64encode(data).decode()
        caller.ok("kb_upload_chunk", upload_id=start["upload_id"], chunk_index=0, data=chunk)
        assert caller.refused("kb_upload_finish", upload_id=start["upload_id"])["error"].startswith("engine_")

    mended = served(caller, "kb_upload_finish", upload_id=start["upload_id"])
    job = mended["structuredContent"]["job_id"]
    caller.ok("kb_jobs", job_id=job, wait_seconds=JOB_SECONDS)
    again = caller.ok("kb_addnote", text="during the cut", wait_seconds=JOB_SECONDS)
    assert before["document_id"] != again["document_id"]
    found = caller.ok("kb_search", query="cut staged engine away", top=10, mode="fts")["results"]
    documents = Counter(result.get("title", result["text"]) for result in found)
    assert documents == {"before the cut": 1, "during the cut": 1, "Tide": 1}


def test_an_engine_that_falls_silent_is_given_up_in_time(images: Images, workshop: Lab) -> None:
    """Its connections stay open without answers: an error within the time-out, then normal service."""
    network = workshop.network()
    engine = Engine(images.engine, network, KB_EMBEDDER="hash")
    server = Server(images.server, network, REQUEST_TIMEOUT="1000")
    workshop.ready(engine, server)
    caller = server.caller()
    caller.ok("kb_search", query="anything")
    with engine.paused():
        refused = caller.refused("kb_search", query="anything")
        assert refused["error"] in {"engine_timeout", "engine_unreachable"}
    served(caller, "kb_search", query="anything")
