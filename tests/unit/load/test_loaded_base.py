"""A load run's requirements of the base, and its clean-up."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from kb_load.messages import HANDSHAKE, LoadedBase, refusal, structured, tool_call
from kb_load.processes import free_port, running
from kb_load.run import main

pytestmark = pytest.mark.process

KEY = "a-key"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("home")
    port, engine_port = free_port(), free_port()
    settings = {
        "KB_ENGINE_URL": f"http://127.0.0.1:{engine_port}",
        "KB_HOME": str(home),
        "KB_MCP_API_KEY": KEY,
    }
    simulator = ["-m", "kb_simulator", "--port", str(engine_port)]
    with (
        running("simulator", simulator, home, port=engine_port),
        running("server", ["-m", "kb_cli.main", "serve", "--port", str(port)], home, port=port, **settings),
    ):
        yield f"http://127.0.0.1:{port}"


def added(base: LoadedBase, text: str) -> int:
    with base._connected() as http:
        message = tool_call(HANDSHAKE, "kb_addnote", {"text": text, "wait_seconds": 10}, key=KEY)
        response = http.post(f"{base._url}/mcp/kb", content=message.body, headers=dict(message.headers))
    return int(structured(response.content)["document_id"])


def test_a_base_that_holds_anything_is_refused_unless_that_is_allowed(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command refuses before it sends anything; after the removal the base is empty."""
    base = LoadedBase(server, KEY)
    assert refusal(base, anyway=False) == ""
    note = added(base, "a note of somebody")
    assert "holds 1 documents" in refusal(base, anyway=False)
    assert refusal(base, anyway=True) == ""
    monkeypatch.setenv("KB_MCP_API_KEY", KEY)
    assert main(["--target", server, "--out", str(tmp_path)]) == 2
    assert "--anyway" in capfd.readouterr().err
    base.remove([note, note], [])
    assert base.documents() == 0


@pytest.mark.skipif(find_spec("locust") is None, reason="the extra `load` is not installed")
def test_a_run_leaves_the_base_as_it_was(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    base = LoadedBase(server, KEY)
    note = added(base, "another note of somebody")
    monkeypatch.setenv("KB_MCP_API_KEY", KEY)
    options = ["--anyway", "--users", "3", "--seconds", "5", "--think", "0.05"]
    main(["--target", server, "--out", str(tmp_path), *options])
    assert (tmp_path / "report.json").exists()
    assert base.documents() == 1
    base.remove([note], [])


def test_a_server_that_is_not_there_is_said() -> None:
    """A base that cannot be checked is not loaded."""
    assert "does not answer" in refusal(LoadedBase(f"http://127.0.0.1:{free_port()}"), anyway=False)
