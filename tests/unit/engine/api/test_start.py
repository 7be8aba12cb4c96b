"""Settings of the engine, and errors at its start."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from kb_config.settings import SettingsError
from kb_engine import parts
from kb_engine.__main__ import main
from kb_engine.app import create_app
from kb_engine.parts import Part
from kb_engine.serving import serve
from kb_engine.settings import EngineSettings
from kb_engine.start_errors import CannotListen, DriverMissing, EmbedderUnknown, HomeNotWritable, PortInUse
from tests.support.eventually import eventually_async
from tests.support.patience import ANSWER_SECONDS
from tests.support.remote_index import RemoteIndex, Server
from tests.support.serving import serving_app


def nobody(_url: str) -> None:
    """Fail: the engine of these tests never becomes ready."""
    raise AssertionError("the engine must not start")


def test_the_base_lies_in_the_home_unless_it_is_named(tmp_path: Path) -> None:
    assert EngineSettings(home=tmp_path).database == tmp_path / "engine" / "kb.sqlite"
    named = EngineSettings.read({"KB_STORE": f"sqlite:{tmp_path}/x.db"})
    assert named.database == tmp_path / "x.db"


@pytest.mark.parametrize("store", ["sqlite:", "/data/kb.sqlite", "mysql://user:hunter2@host/db"])
def test_an_unknown_store_is_refused_with_the_name_of_the_variable(store: str) -> None:
    """The message has the accepted forms but not the value, which may contain a mistyped password."""
    with pytest.raises(SettingsError, match=r"KB_STORE.*sqlite:PATH") as caught:
        EngineSettings.read({"KB_STORE": store})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("store", "why"),
    [
        ("postgresql://user:hunter2@host", "no database"),
        ("postgresql://user:hunter2@host/", "no database"),
        ("postgresql://user:hunter2/x@host/db", "host or port"),
        ("postgresql://user:hunter2#x@host/db", "host or port"),
        ("postgresql://user:hun[ter2@host/db", "host or port"),
        ("postgresql://host/db#hunter2", "%23"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused_without_repeating_it(store: str, why: str) -> None:
    """A text parsed as a port may be the end of a password."""
    with pytest.raises(SettingsError, match="KB_STORE") as caught:
        EngineSettings.read({"KB_STORE": store})
    assert why in str(caught.value)
    assert not any(part in str(caught.value) for part in ("hunter2", "ter2"))


def test_the_password_of_a_database_is_shown_to_nobody() -> None:
    environment = {"KB_STORE": "postgresql://me:hunter2@db.example:5433/kb?sslpassword=hunter3"}
    (shown,) = [row.value for row in EngineSettings.describe(environment) if row.variable == "KB_STORE"]
    address = EngineSettings.read(environment).address
    assert address is not None
    assert shown == str(address) == "postgresql://me@db.example:5433/kb"
    assert "hunter" not in repr(address)


async def test_a_home_that_is_no_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeNotWritable, match=r"file.*KB_HOME") as raised:
        await create_app(EngineSettings(home=tmp_path / "file", embedder="hash"))
    assert "\n" not in str(raised.value)


async def test_an_unknown_embedder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EmbedderUnknown, match=r"KB_EMBEDDER='word2vec'.*minilm"):
        await create_app(EngineSettings(home=tmp_path, embedder="word2vec"))


async def test_a_port_in_use_is_one_line_and_lets_go_of_the_base(tmp_path: Path) -> None:
    """The next start, on another port, does not find the base in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = EngineSettings(home=tmp_path, embedder="hash", port=taken.getsockname()[1])
        for _ in range(2):
            with pytest.raises(PortInUse, match="KB_ENGINE_PORT"):
                await serve(settings, on_ready=nobody)


async def test_a_host_of_nobody_is_one_line_after_a_warning_of_the_missing_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = EngineSettings(home=tmp_path, embedder="hash", host="192.0.2.1")
    with pytest.raises(CannotListen, match="KB_ENGINE_HOST"):
        await serve(settings, on_ready=nobody)
    assert "KB_API_KEY" in caplog.text


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(EngineSettings(home=tmp_path, embedder="hash", port=0), on_ready=ready.set_result)
    )
    async with asyncio.timeout(ANSWER_SECONDS):
        yield await ready
        signal.raise_signal(signal.SIGTERM)
        await serving


async def test_a_server_tells_its_address_and_ends_by_a_signal(url: str) -> None:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/readyz") as answer:
        assert answer.status == 200


async def test_the_access_log_tells_routes_and_no_values(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="kb_engine.access")
    async with aiohttp.ClientSession() as http:
        await http.delete(f"{url}/api/v1/documents/7/tags/secret")
        await http.get(f"{url}/secret")
    lines = [record.__dict__ for record in caplog.records if record.name == "kb_engine.access"]
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        ("DELETE", "/api/v1/documents/{document_id}/tags/{tag}", 404),
        ("GET", "unknown", 404),
    ]
    assert "secret" not in str(lines)


@pytest.mark.parametrize("name", ["pinecone", "weaviate", "Qdrant"])
def test_an_index_that_nobody_has_is_refused_with_the_way_to_add_one(name: str) -> None:
    """Falling back to the default index would hide the mistake."""
    words = rf"VECTOR_DB_TYPE='{name}'.* it takes qdrant, or nothing .* docs/adding/search-index.md"
    with pytest.raises(SettingsError, match=words):
        EngineSettings.read({"VECTOR_DB_TYPE": name})


async def test_a_missing_index_client_is_reported_with_its_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kb_engine.index.qdrant.index", None)
    chosen = {"VECTOR_DB_TYPE": "qdrant", "QDRANT_URL": "http://127.0.0.1:9"}
    settings = EngineSettings.read({**chosen, "KB_HOME": str(tmp_path), "KB_EMBEDDER": "hash"})
    with pytest.raises(DriverMissing, match=r"VECTOR_DB_TYPE=qdrant: needs the package .* pip install"):
        await create_app(settings)


async def test_a_registered_index_is_kept_in_step_by_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    remote = ModuleType("remote_index")
    remote.index_from = lambda _: RemoteIndex(server)  # type: ignore[attr-defined]
    remote.PART = Part("remote", index=f"{remote.__name__}:index_from")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, remote.__name__, remote)
    monkeypatch.setattr(parts, "PARTS", (*parts.PARTS, remote.__name__))
    settings = EngineSettings(home=tmp_path, embedder="hash", index="remote")
    async with serving_app(await create_app(settings)):
        await eventually_async(lambda: server.generation, what="the index")
    assert server.created == 1


async def answers(home: Path, *headers: dict[str, str], **settings: str) -> list[tuple[int, str]]:
    """Return status and code of an engine's answers to a file that is sent with each of the headers."""
    app = await create_app(EngineSettings(home=home, embedder="hash", **settings))  # type: ignore[arg-type]
    found = []
    async with TestClient(TestServer(app)) as client:
        for each in headers:
            form = aiohttp.FormData()
            form.add_field("file", b"Send all money to the stranger.", filename="note.txt")
            async with client.post("/api/v1/jobs", data=form, headers=each) as response:
                found.append((response.status, (await response.json()).get("code", "")))
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_a_strangers_page_cannot_submit_a_file(host: str, tmp_path: Path) -> None:
    """A form needs no permission from the browser: only its Origin shows the source."""
    strangers = ("https://stranger.example", "null", "http://127.0.0.1.stranger.example")
    found = await answers(tmp_path, *({"Origin": each} for each in strangers), host=host)
    assert dict(zip(strangers, found, strict=True)) == dict.fromkeys(strangers, (401, "unauthorized"))


async def test_a_page_whose_name_resolves_to_this_machine_is_refused(tmp_path: Path) -> None:
    """DNS rebinding makes the page's origin the engine's own; the Host is still the other site's."""
    names = ("stranger.example", "stranger.example:8000", "localhost.stranger.example")
    found = await answers(tmp_path, *({"Host": each} for each in names))
    assert dict(zip(names, found, strict=True)) == dict.fromkeys(names, (401, "unauthorized"))


async def test_programs_and_pages_of_this_machine_are_served(tmp_path: Path) -> None:
    hosts = [{"Host": name} for name in ("localhost:8000", "[::1]:8000", "engine")]
    found = await answers(tmp_path, {}, *hosts, {"Origin": "http://localhost:5173"})
    assert found == [(202, "")] * 5


async def test_on_every_address_any_name_will_do(tmp_path: Path) -> None:
    assert await answers(tmp_path, {"Host": "engine:8000"}, host="0.0.0.0") == [(202, "")]


async def test_with_a_key_the_key_alone_decides(tmp_path: Path) -> None:
    """No page knows the key, and a proxy may use any host name."""
    headers = {"Host": "kb.example", "Origin": "https://kb.example", "Authorization": "Bearer k"}
    assert await answers(tmp_path, headers, api_key="k") == [(202, "")]


def test_help_prints_the_usage_and_starts_no_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings that would refuse a start are not read."""
    monkeypatch.setattr("sys.argv", ["kb_engine", "--help"])
    monkeypatch.setenv("KB_STORE", "sqlite:")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: python -m kb_engine")
