"""The commands, and a real engine for them in this process, on its own thread and port."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kb_cli.main import main
from tests.support import engines
from tests.support.postgres import Database, give_back, new_database

KEY = "engine-secret"


@dataclass(frozen=True)
class RunningEngine:
    url: str
    key: str = KEY


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with engines.engine(tmp_path_factory.mktemp("home"), api_key=KEY) as url:
        yield RunningEngine(url)


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for name in ("KB_CONFIG", "KB_ENGINE_URL", "KB_API_KEY", "KB_HOME", "LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)


@dataclass
class Kb:
    """Calls `kb` as a script does."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        status = main(list(arguments))
        output = self.capsys.readouterr()
        return status, output.out, output.err

    def json(self, *arguments: str) -> Any:
        status, out, err = self(*arguments, "--json")
        assert (status, err) == (0, "")
        return json.loads(out)

    def note(self, text: str, *arguments: str) -> int:
        return int(self.json("addnote", text, *arguments)["document_id"])

    def tags(self, document: int) -> list[str]:
        return list(self.json("get", str(document), "--no-text")["tags"])


@pytest.fixture
def kb(engine: RunningEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kb:
    monkeypatch.setenv("KB_ENGINE_URL", engine.url)
    monkeypatch.setenv("KB_API_KEY", engine.key)
    return Kb(capsys)


@pytest.fixture
def database() -> Iterator[Database]:
    database = asyncio.run(new_database())
    yield database
    give_back(database)


class Web(BaseHTTPRequestHandler):
    """A site: contents by path, with ETags; it notes the paths that it has sent in full."""

    pages: dict[str, bytes | int | str]
    sent: list[str]

    def do_GET(self) -> None:
        found = self.pages.get(self.path, 404)
        etag = f'"{hash(found)}"'
        if isinstance(found, bytes) and self.headers["If-None-Match"] != etag:
            self.sent.append(self.path)
            self._answer(
                200, {"ETag": etag, "Content-Type": "application/xml" if b"<loc" in found else "text/plain"}
            )
            self.wfile.write(found)
        elif isinstance(found, str):
            self._answer(302, {"Location": found})
        else:
            self._answer(304 if isinstance(found, bytes) else found, {})

    def _answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its URL; this machine counts as one of the internet."""
    monkeypatch.setattr("kb_cli.web.is_of_the_internet", lambda address: address.is_loopback)
    Web.pages, Web.sent = {}, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Web) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
