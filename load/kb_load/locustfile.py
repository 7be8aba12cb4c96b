"""The locustfile: `locust -f load/kb_load/locustfile.py --host http://127.0.0.1:3000`.

`python -m kb_load.run` starts the servers and runs Locust with this file; alone it loads any URL. Environment
variables: KB_LOAD_SHAPE, KB_LOAD_USERS, KB_LOAD_SECONDS (without a shape Locust's page sets the users),
KB_LOAD_KEY, KB_LOAD_SEED, KB_LOAD_THINK (seconds between two calls of an agent), KB_LOAD_ANYWAY (1: load a
base that is not empty). Documents that the agents add are removed when they stop.

Most calls of an agent are searches; others read documents, add notes and upload files. An agent keeps a fixed
number of notes and files. Once it has them all, it updates its notes and uploads the same files again, so
that the base of a long run has a constant size and growing memory is a leak. Uploads are then of known
content: measure uploads of new content with a short run or with many agents. Texts and questions are
generated from a seed.

A call fails if its response is not a result, or if the result has `isError`. Each entry
of Locust's table is a tool at a protocol version.
"""

from __future__ import annotations

import base64
import itertools
import os
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from faker import Faker
from locust import LoadTestShape, between, events, task
from locust.contrib.fasthttp import FastHttpUser
from locust.env import Environment
from locust.runners import WorkerRunner

from kb_load import messages
from kb_load.plan import Plan, ShapeName

COLLECTIONS = ("documents", "memory", "workspace")
_SUBJECTS = ("pensions", "harbour fees", "bee keeping", "canal locks", "orchards", "archives", "clock repair")


@dataclass(frozen=True, slots=True)
class File:
    """A generated text file with a unique `name`."""

    name: str
    data: bytes


class Content:
    """Texts of one agent, generated from a seed."""

    def __init__(self, seed: int) -> None:
        self._faker = Faker("en_GB")
        self._faker.seed_instance(seed)
        self.random = self._faker.random

    def question(self) -> str:
        """Return a question of a few words, usually about a document in the base."""
        words = self._faker.words(self.random.randint(1, 5))
        return f"{self.random.choice(_SUBJECTS)} {' '.join(words)}"

    def words(self) -> str:
        return " ".join(self._faker.words(2))

    def note(self) -> str:
        return f"{self.random.choice(_SUBJECTS).capitalize()}: {self._faker.paragraph(4)}"

    def file(self, kilobytes: int) -> File:
        """Return a Markdown file of about `kilobytes`."""
        parts = [f"# {self._faker.sentence(4)}"]
        while sum(len(part) for part in parts) < kilobytes * 1024:
            parts.append(f"## {self._faker.sentence(3)}\n\n{self._faker.paragraph(12)}")
        return File(f"{self._faker.uuid4()}.md", "\n\n".join(parts).encode())

    def tags(self) -> list[str]:
        return sorted(set(self._faker.words(self.random.randint(1, 2))))

    def collection(self) -> str:
        return str(self.random.choice(COLLECTIONS))


SEED = int(os.environ.get("KB_LOAD_SEED", "7"))
THINK = float(os.environ.get("KB_LOAD_THINK", "0.2"))
PATH = os.environ.get("KB_LOAD_PATH", "/mcp")
KEY = os.environ.get("KB_LOAD_KEY", "")

DIRECT = "PUT upload_url"
_CHUNKS = 3
_REMEMBERED = 50
_NOTES, _FILES = 5, 3
"""Number of each that an agent keeps."""
_ordinals = itertools.count()


class Agent(FastHttpUser):
    """An agent with its own conversation, in the protocol era of its class."""

    abstract = True
    era: messages.Era = messages.HANDSHAKE
    wait_time = between(THINK / 2, THINK * 1.5)
    connection_timeout = 10.0
    network_timeout = 60.0
    max_retries = 0

    def on_start(self) -> None:
        """Open the session as a client does, and list the tools."""
        worker = getattr(self.environment.runner, "worker_index", 0) or 0
        self.content = Content(SEED * 1_000_003 + worker * 10_007 + next(_ordinals))
        self._ids = itertools.count(1)
        self._documents: deque[int] = deque(maxlen=_REMEMBERED)
        self._notes: list[int] = []
        self._files: list[File] = []
        self._jobs: deque[str] = deque(maxlen=_REMEMBERED)
        self._uploaded: dict[str, str] = {}
        first: tuple[str, dict[str, Any]] = ("server/discover", {})
        if self.era == messages.HANDSHAKE:
            params = {
                "protocolVersion": messages.HANDSHAKE,
                "capabilities": {},
                "clientInfo": messages.CLIENT,
            }
            first = ("initialize", params)
        for method, params in (first, ("tools/list", {})):
            message = messages.request(self.era, method, params, request_id=next(self._ids), key=KEY)
            self._posted(method, message, messages.result_of)

    def on_stop(self) -> None:
        base = messages.LoadedBase(self.host or "", KEY)
        try:
            base.remove(self._notes, self._uploaded.values())
        except messages.CallFailed as failed:
            sys.stderr.write(f"load: what an agent added was not all removed: {failed}\n")

    # --- what agents do ---------------------------------------------------------------------------

    @task(24)
    def search(self) -> None:
        self._search({"query": self.content.question(), "top": self.content.random.choice((5, 10, 20))})

    @task(8)
    def search_within(self) -> None:
        self._search(
            {"query": self.content.question(), "collection": self.content.collection(), "neighbors": 1}
        )

    @task(4)
    def search_words(self) -> None:
        self._search({"query": self.content.words(), "fts_only": True})

    @task(3)
    def search_variants(self) -> None:
        """Query expansion: three phrasings of one question, one after the other."""
        for _ in range(3):
            self._search({"query": self.content.question()})

    @task(8)
    def get(self) -> None:
        if self._documents:
            document_id = self.content.random.choice(list(self._documents))
            self._call("kb_get", {"document_id": document_id, "chunk_limit": 20})

    @task(5)
    def remember(self) -> None:
        if len(self._notes) == _NOTES:
            self.correct()
            return
        arguments = {"text": self.content.note(), "collection": "memory", "tags": self.content.tags()}
        found = self._call("kb_addnote", arguments | {"wait_seconds": 10})
        if found is not None and found.get("document_id"):
            self._notes.append(found["document_id"])

    @task(2)
    def correct(self) -> None:
        if self._notes:
            note = self.content.random.choice(self._notes)
            self._call("kb_update_note", {"document_id": note, "text": self.content.note()})

    @task(2)
    def status(self) -> None:
        self._call("kb_status", {})

    @task(2)
    def jobs(self) -> None:
        job_id = self.content.random.choice(list(self._jobs)) if self._jobs else None
        self._call("kb_jobs", {"job_id": job_id} if job_id else {})

    @task(1)
    def upload_chunked(self) -> None:
        """Upload a file in base64 chunks, as tool arguments."""
        file, started = self._start()
        if started is None:
            return
        step = -(-len(file.data) // _CHUNKS)
        for index in range(_CHUNKS):
            data = base64.b64encode(file.data[index * step : (index + 1) * step]).decode()
            arguments = {"upload_id": started["upload_id"], "chunk_index": index, "data": data}
            if self._call("kb_upload_chunk", arguments) is None:
                return
        self._finish(file, started["upload_id"])

    @task(1)
    def upload_direct(self) -> None:
        """Upload a file by PUT to the upload URL, as `curl -g -T` does."""
        file, started = self._start()
        if started is None:
            return
        path = urlsplit(started["upload_url"]).path
        data: Any = file.data  # bytes pass, though the annotation there does not say so
        with self.client.put(path, data=data, name=DIRECT, catch_response=True) as response:
            if response.status_code != 201:
                response.failure(f"{response.status_code} {response.text or ''}"[:300])
                return
        self._finish(file, started["upload_id"])

    # --- calls ------------------------------------------------------------------------------------

    def _search(self, arguments: dict[str, Any]) -> None:
        found = self._call("kb_search", arguments)
        if found is not None:
            self._documents.extend(result["document_id"] for result in found["results"])

    def _start(self) -> tuple[File, dict[str, Any] | None]:
        """Return a new file, or a known one if the agent has all, and the response of `kb_upload_start`."""
        if len(self._files) == _FILES:
            file: File = self.content.random.choice(self._files)
        else:
            file = self.content.file(self.content.random.randint(2, 16))
            self._files.append(file)
        arguments = {"filename": file.name, "total_size": len(file.data), "collection": "documents"}
        return file, self._call("kb_upload_start", arguments)

    def _finish(self, file: File, upload_id: str) -> None:
        found = self._call("kb_upload_finish", {"upload_id": upload_id})
        if found is not None and found.get("job_id"):
            self._jobs.append(found["job_id"])
            self._uploaded[file.name] = found["job_id"]  # sent again, it is the same document

    def _call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """Return the structured content, or None if the call failed; Locust has counted the failure."""
        message = messages.tool_call(self.era, tool, arguments, request_id=next(self._ids), key=KEY)
        return self._posted(tool, message, messages.structured)

    def _posted(self, name: str, message: messages.Message, read: Any) -> dict[str, Any] | None:
        body: Any = message.body  # bytes pass, though the annotation there does not say so
        with self.client.request(
            "POST", PATH, data=body, headers=dict(message.headers), name=name, catch_response=True
        ) as response:
            # Request type in Locust's statistics: each tool has a row per protocol version.
            response.request_meta["request_type"] = self.era
            try:
                if response.status_code != 200:
                    raise messages.CallFailed(f"{response.status_code} {response.text or ''}"[:300])
                found: dict[str, Any] = read(response.content)
            except messages.CallFailed as failed:
                response.failure(str(failed))
                return None
            response.success()
            return found


class HandshakeAgent(Agent):
    era: messages.Era = messages.HANDSHAKE


class ModernAgent(Agent):
    era: messages.Era = messages.MODERN


class PlannedShape(LoadTestShape):
    """The plan of the environment variables; without one, Locust's page sets the users."""

    abstract = "KB_LOAD_SHAPE" not in os.environ  # Locust takes a shape that is not

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Locust's
        name = cast("ShapeName", os.environ["KB_LOAD_SHAPE"])
        users, seconds = os.environ.get("KB_LOAD_USERS", "20"), os.environ.get("KB_LOAD_SECONDS", "60")
        self.plan = Plan(name, int(users), int(seconds))

    def tick(self) -> tuple[int, float] | None:
        """Return the number of users for this moment; None ends the run."""
        users = self.plan.users(self.get_run_time())  # type: ignore[no-untyped-call]  # Locust's
        return None if users is None else (users, self.plan.spawn_rate)


REFUSED = 2


@events.test_start.add_listener  # type: ignore[untyped-decorator]  # Locust's
def look(environment: Environment, **_more: Any) -> None:
    """Refuse a base that is not empty, unless that is allowed; runs once, not in workers."""
    if isinstance(environment.runner, WorkerRunner):
        return
    base = messages.LoadedBase(environment.host or "", os.environ.get("KB_LOAD_KEY", ""))
    if reason := messages.refusal(base, anyway=bool(os.environ.get(messages.ANYWAY))):
        sys.stderr.write(f"load: {reason}\n")
        environment.process_exit_code = REFUSED
        if environment.runner is not None:
            environment.runner.quit()
