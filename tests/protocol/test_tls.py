"""HTTPS by settings: server, workers and engine, with certificates that are replaced during use."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import httpx2
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from websockets.asyncio.client import connect

from kb_cli.output import Exit
from kb_http.certificate import trusting
from tests.support.certificates import Pair, write_pair
from tests.support.commands import ended
from tests.support.eventually import eventually
from tests.support.mcp_messages import BOTH, call, request
from tests.support.patience import ANSWER_SECONDS
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.process

KEY = "agents-secret"
HTML = {"Accept": "text/html"}
ONE_PROCESS, WORKERS = (
    pytest.mark.parametrize("stack", [flags], indirect=True, scope="module", ids=[name])
    for name, flags in (("one process", ("--single",)), ("workers", ()))
)


def settings_of(pair: Pair, prefix: str = "KB_TLS") -> dict[str, str]:
    return {f"{prefix}_CERT": str(pair.certificate), f"{prefix}_KEY": str(pair.key)}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair") / "server")


@pytest.fixture(scope="module")
def engine_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair") / "engine")


@pytest.fixture(scope="module")
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pair: Pair, engine_pair: Pair
) -> Iterator[Stack]:
    """Server and engine with HTTPS, each with its own self-signed certificate."""
    flags: tuple[str, ...] = request.param
    settings = {
        **settings_of(pair),
        **settings_of(engine_pair, "KB_ENGINE_TLS"),
        "KB_ENGINE_CA": str(engine_pair.certificate),
        "KB_EMBEDDER": "hash",
        "KB_MCP_API_KEY": KEY,
        "KB_WORKERS": "1" if flags else "2",
        "LOG_LEVEL": "info",
    }
    with running_stack(tmp_path_factory.mktemp("home"), *flags, **settings) as running:
        yield running


@ONE_PROCESS
async def test_calls_uploads_and_websockets_go_over_tls(stack: Stack, pair: Pair) -> None:
    shown = stack.process.output()
    assert f"endpoint     {stack.mcp_url}\n" in shown
    assert f"claude mcp add --transport http kb {stack.mcp_url} " in shown
    assert stack.mcp_url.startswith("https://")
    tls, authorization = trusting(pair.certificate), {"Authorization": f"Bearer {KEY}"}
    async with (
        httpx2.AsyncClient(verify=tls, headers=authorization, timeout=ANSWER_SECONDS) as http,
        streamable_http_client(stack.mcp_url, http_client=http) as (reading, writing, *_),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        note = await session.call_tool("kb_addnote", {"text": "granite is hard", "wait_seconds": 50})
        assert not note.is_error, note.content
        found = await session.call_tool("kb_search", {"query": "granite"})
        assert "granite is hard" in found.content[0].text  # type: ignore[union-attr]
        upload = await session.call_tool("kb_upload_start", {"filename": "a.md", "total_size": 5})
        url = json.loads(upload.content[0].text)["upload_url"]  # type: ignore[union-attr]
        assert url.startswith(f"{stack.server_url}/")
        assert (await http.put(url, content=b"stone")).status_code == 201
    wss = stack.mcp_url.replace("https", "wss")
    async with connect(wss, ssl=tls, additional_headers=authorization) as socket:
        await socket.send(json.dumps(request("ping")))
        assert json.loads(await socket.recv())["result"] == {}


@ONE_PROCESS
def test_plain_http_is_refused_and_cookies_are_secure_with_tls(
    stack: Stack, pair: Pair, engine_pair: Pair
) -> None:
    tls = trusting(pair.certificate)
    right = httpx.post(
        f"{stack.server_url}/login",
        files={"key": (None, KEY)},
        headers=HTML,
        verify=tls,
        timeout=ANSWER_SECONDS,
    )
    assert (right.status_code, "Secure" in right.headers["Set-Cookie"]) == (303, True)
    for url in (stack.server_url, stack.engine_url):
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url.replace('https', 'http')}/healthz", timeout=ANSWER_SECONDS)
        with pytest.raises(httpx.ConnectError, match="self-signed"):
            httpx.get(f"{url}/healthz", timeout=ANSWER_SECONDS)
    environment = {"KB_ENGINE_URL": stack.engine_url, "KB_ENGINE_CA": str(engine_pair.certificate)}
    assert ended("status", "--json", **environment).returncode == 0
    refused = ended("status", KB_ENGINE_URL=stack.engine_url)
    assert (refused.returncode, "self-signed" in refused.stderr) == (Exit.UNREACHABLE, True)


@WORKERS
def test_a_replaced_certificate_is_shown_without_dropping_connections(stack: Stack, pair: Pair) -> None:
    """Every worker does so; a certificate without its matching key is not loaded yet."""
    first = trusting(pair.certificate)
    limits = httpx.Limits(max_connections=1, keepalive_expiry=60.0)
    headers = {**BOTH, "Authorization": f"Bearer {KEY}"}
    kept = [
        httpx.Client(verify=first, limits=limits, headers=headers, timeout=ANSWER_SECONDS) for _ in range(2)
    ]

    def served(client: httpx.Client) -> bool:
        return client.post(stack.mcp_url, json=call("kb_status")).status_code == 200

    def taken(tls: ssl.SSLContext) -> list[bool]:
        """For each of four new connections, True if it accepts the certificate."""
        answers = []
        for _ in range(4):
            with suppress(httpx.ConnectError):
                httpx.get(f"{stack.server_url}/healthz", verify=tls, timeout=ANSWER_SECONDS)
                answers.append(True)
                continue
            answers.append(False)
        return answers

    assert all(map(served, kept))
    new = write_pair(pair.certificate.parent.with_name("new"))
    new.certificate.replace(pair.certificate)
    second = trusting(pair.certificate)
    eventually(
        lambda: (taken(first), stack.process.output())[1],
        lambda text: "the one before stays" in text,
        what="word of a certificate without its key",
    )
    assert all(taken(first))
    new.key.replace(pair.key)
    eventually(lambda: taken(second), all, what="the new certificate, of all workers")
    assert all(map(served, kept))
    for client in kept:
        client.close()


@pytest.mark.parametrize("command", [("up", "--single"), ("serve",), ("serve", "workers")])
def test_a_pair_that_does_not_fit_is_refused_at_the_start(
    tmp_path: Path, pair: Pair, engine_pair: Pair, command: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    environment = {"KB_HOME": str(tmp_path / "home"), "KB_MCP_PORT": "0", "KB_ENGINE_PORT": "0"}
    environment["KB_WORKERS"] = "2" if "workers" in command else "1"
    mixed = settings_of(Pair(pair.certificate, engine_pair.key))
    refused = ended(*(part for part in command if part != "workers"), **environment, **mixed)
    said = refused.stderr + capfd.readouterr().err  # workers are separate processes
    assert refused.returncode == Exit.FAILED
    assert "KB_TLS_CERT, KB_TLS_KEY: " in said
    assert "is not the key of the certificate" in said
    assert "Traceback" not in said


def test_an_engine_with_a_pair_that_does_not_fit_is_refused(
    tmp_path: Path, pair: Pair, engine_pair: Pair
) -> None:
    mixed = settings_of(Pair(pair.certificate, engine_pair.key), "KB_ENGINE_TLS")
    refused = ended("engine", KB_HOME=str(tmp_path), KB_ENGINE_PORT="0", KB_EMBEDDER="hash", **mixed)
    assert refused.returncode == Exit.FAILED
    assert "KB_ENGINE_TLS_CERT, KB_ENGINE_TLS_KEY: " in refused.stderr


@pytest.mark.parametrize(
    ("setting", "command", "words"),
    [
        ("KB_TLS_CERT", "serve", "KB_TLS_KEY: is missing; KB_TLS_CERT is set"),
        ("KB_ENGINE_TLS_KEY", "engine", "KB_ENGINE_TLS_CERT: is missing; KB_ENGINE_TLS_KEY is set"),
        ("KB_ENGINE_CA", "serve", "KB_ENGINE_CA: /none.pem: No such file or directory"),
    ],
)
def test_a_certificate_without_its_key_is_refused(
    tmp_path: Path, setting: str, command: str, words: str
) -> None:
    refused = ended(command, KB_HOME=str(tmp_path), KB_MCP_PORT="0", **{setting: "/none.pem"})
    assert (refused.returncode, words in refused.stderr) == (Exit.USAGE, True), refused.stderr


@ONE_PROCESS
def test_doctor_says_what_is_wrong_with_the_certificate(
    stack: Stack, pair: Pair, engine_pair: Pair, tmp_path: Path
) -> None:
    environment = {
        **settings_of(pair),
        "HOME": str(tmp_path),
        "KB_HOME": str(stack.home),
        "KB_MCP_PORT": stack.server_url.rpartition(":")[2],
        "KB_ENGINE_URL": stack.engine_url,
        "KB_ENGINE_CA": str(engine_pair.certificate),
    }
    report = ended("doctor", "--json", **environment)
    findings = {finding["about"]: finding for finding in json.loads(report.stdout)}
    assert findings["certificate"]["verdict"] == "warning"
    assert "self-signed" in findings["certificate"]["found"]
    assert (findings["server"]["verdict"], findings["server"]["found"]) == ("ok", stack.mcp_url)
    assert findings["engine"]["verdict"] == "ok"
