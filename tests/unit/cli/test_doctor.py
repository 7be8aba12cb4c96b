"""`kb doctor` reports each problem by itself, and changes nothing."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from kb_cli.output import Exit
from kb_contracts.access.key_file import KeyFile
from kb_engine.index.qdrant.qdrant_settings import QdrantSettings
from kb_load.processes import free_port
from tests.support.engines import engine
from tests.support.eventually import eventually
from tests.unit.cli.conftest import KEY, Kb, RunningEngine


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without any client, and no server."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KB_HOME", str(tmp_path / "kb"))
    monkeypatch.setenv("KB_MCP_PORT", str(free_port()))
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "KB_MCP_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def web_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another web server on kb's port; the parameter is the status of all its responses."""

    status = getattr(request, "param", None)

    class Silent(SimpleHTTPRequestHandler):
        def send_response(self, code: int, message: str | None = None) -> None:
            super().send_response(status or code, message)

        def log_message(self, *_: object) -> None:
            """Keep the output of the tests clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("KB_MCP_PORT", str(server.server_port))
        yield
        server.shutdown()
        thread.join()


def looked(kb: Kb) -> dict[str, tuple[str, str]]:
    """Return verdict and finding of each check."""
    _, out, _ = kb("doctor", "--json")
    return {each["about"]: (each["verdict"], each["found"]) for each in json.loads(out)}


def test_the_doctor_lists_passed_and_failed_checks_together(kb: Kb, home: Path) -> None:
    """Here the engine runs and the server does not."""
    before = sorted(home.rglob("*"))
    status, out, _ = kb("doctor")
    assert status == Exit.FAILED
    verdicts = [line.split("\t")[:2] for line in out.splitlines() if not line.startswith("\t")]
    assert ["ok", "engine"] in verdicts
    assert ["error", "server"] in verdicts
    assert "kb up" in out
    assert sorted(home.rglob("*")) == before


def test_an_engine_that_is_away_or_refuses_the_key_is_wrong(kb: Kb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KB_API_KEY", "another")
    assert looked(kb)["engine"][0] == "error"
    assert "KB_API_KEY" in looked(kb)["engine"][1]
    monkeypatch.setenv("KB_ENGINE_URL", f"http://127.0.0.1:{free_port()}")
    assert "no engine answers" in looked(kb)["engine"][1]


def test_a_failure_counts_until_the_file_is_added_corrected(kb: Kb, tmp_path: Path) -> None:
    file = tmp_path / "corrected.txt"
    for content, failed, verdict in (
        (b"\xff\xfe\xfd", "1 failed", "warning"),
        (b"granite", "0 failed, 1 failure settled", None),
    ):
        file.write_bytes(content)
        kb("add", str(file))
        assert failed in kb("status")[1]
        assert looked(kb).get("jobs", (None,))[0] == verdict


@pytest.mark.process
def test_an_engine_whose_index_is_away_is_wrong(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = QdrantSettings(url=f"http://127.0.0.1:{free_port()}")
    with engine(tmp_path / "other", api_key=KEY, index="qdrant", parts=(away,)) as url:
        monkeypatch.setenv("KB_ENGINE_URL", url)
        error = eventually(lambda: kb("status")[2], what="the issue")
        assert error.startswith("issue: The search index cannot be asked")
        _, out, _ = kb("doctor", "--json")
        found = [each["found"] for each in json.loads(out) if each["verdict"] == "error"]
    assert any(each.startswith("The search index cannot be asked") for each in found)


def test_a_program_that_has_the_port_is_not_taken_for_the_server(kb: Kb, web_server: None) -> None:
    verdict, found = looked(kb)["server"]
    assert (verdict, "not a server of kb" in found) == ("error", True)


def test_a_certificate_of_the_engine_that_cannot_be_read_is_named(
    kb: Kb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KB_ENGINE_CA", "/none.pem")
    assert looked(kb)["settings"] == ("error", "KB_ENGINE_CA: /none.pem: No such file or directory")


@pytest.mark.parametrize(("scheme", "verified"), [("http", False), ("https", True), ("HTTPS", True)])
def test_the_certificate_of_a_server_is_checked(
    kb: Kb, monkeypatch: pytest.MonkeyPatch, scheme: str, *, verified: bool
) -> None:
    asked: list[tuple[str, bool]] = []

    def get(url: str, *, verify: bool, **_: object) -> httpx.Response:
        asked.append((url, verify))
        return httpx.Response(HTTPStatus.OK, json={})

    monkeypatch.setattr("kb_cli.doctor.httpx.get", get)
    monkeypatch.setenv("KB_PUBLIC_URL", f"{scheme}://kb.example")
    assert looked(kb)["server"][0] == "ok"
    assert asked[-1] == (f"{scheme}://kb.example/readyz", verified)


def test_a_setting_that_does_not_fit_is_named_and_hides_nothing_else(
    kb: Kb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KB_MCP_PORT", "many")
    found = looked(kb)
    assert found["settings"][0] == "error"
    assert "KB_MCP_PORT" in found["settings"][1]
    assert found["engine"][0] == found["data folder"][0] == "ok"


def test_a_disk_without_room_is_wrong(kb: Kb, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5 << 20))
    found = looked(kb)
    assert found["data folder"][0] == "error"
    assert "5 MiB free" in found["data folder"][1]
    assert found["storage"] == ("error", "5 MiB free on the fuller disk, of the base or of uploads")


def test_clients_that_are_there_know_kb_or_do_not(kb: Kb, home: Path) -> None:
    kb("connect", "cursor", "--yes")
    (home / ".gemini").mkdir()
    (home / ".gemini" / "settings.json").write_text("{}")
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text("not toml")
    found = looked(kb)
    assert [found[title][0] for title in ("Cursor", "Gemini CLI", "Codex")] == ["ok", "warning", "error"]
    assert "Windsurf" not in found


def test_a_client_that_is_installed_and_has_no_configuration_yet_is_listed(
    kb: Kb, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home / "bin"))
    (home / "bin").mkdir()
    program = home / "bin" / "claude"
    program.touch(0o755)
    (home / ".codeium" / "windsurf").mkdir(parents=True)
    (home / ".cursor").mkdir()
    (home / ".cursor" / "extensions").touch()
    found = looked(kb)
    assert found["Claude Code"] == found["Cursor"] == ("warning", "not configured for kb")
    assert not {"Windsurf", "Codex", "Zed", "VS Code"} & found.keys()


def test_a_client_that_knows_another_kb_is_noted(kb: Kb, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kb("connect", "cursor", "--yes")
    monkeypatch.setenv("KB_MCP_PORT", str(free_port()))
    assert looked(kb)["Cursor"] == ("warning", "configured for a different kb")


def test_a_client_whose_key_is_missing_or_refused_is_an_error(
    kb: Kb, engine: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine stands for the server: both answer 401."""
    monkeypatch.setenv("KB_MCP_PORT", engine.url.rpartition(":")[2])
    for key, verdict in [("", "error"), ("wrong", "error"), (KEY, "ok")]:
        kb("connect", "cursor", "--yes", "--api-key", key)
        assert looked(kb)["Cursor"][0] == verdict


def test_the_file_of_keys_is_looked_at(kb: Kb, home: Path) -> None:
    assert looked(kb)["keys"][0] == "ok"
    kb("keys", "create", "ci", "--expires", "1d")
    kb("keys", "create", "old", "--expires", "90d")
    path = home / "kb" / "keys.json"
    expires = KeyFile(path).read()[1].expires
    assert expires is not None
    path.write_text(path.read_text().replace(f"{expires:%Y-%m-%dT}", "2020-01-01T"))
    path.chmod(0o640)
    _, out, _ = kb("doctor", "--json")
    found = [(each["verdict"], each["about"], each["found"]) for each in json.loads(out)]
    assert ("error", "keys", f"other users may read or change {path}: its mode is 0640") in found
    assert ("ok", "keys", f"1 of 2 in {path} are valid") in found
    assert ("warning", "key old", "has expired") in found
    assert [each[:2] for each in found if each[1] == "key ci"] == [("warning", "key ci")]
    kb("keys", "revoke", "ci")
    assert looked(kb)["keys"] == ("warning", f"0 of 2 in {path} are valid, and clients need one")
    path.write_text("{")
    assert looked(kb)["keys"][0] == "error"


@pytest.mark.parametrize("web_server", [HTTPStatus.UNAUTHORIZED], indirect=True)
def test_a_server_that_requires_a_key_without_a_file_of_keys_is_named(kb: Kb, web_server: None) -> None:
    assert "the running server requires a key" in looked(kb)["keys"][1]


def test_a_folder_of_data_whose_name_is_too_long_does_not_end_the_doctor(
    kb: Kb, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KB_HOME", str(home / ("long" * 64)))
    verdict, found = looked(kb)["files"]
    assert (verdict, found.rpartition(": ")[2]) == ("error", "File name too long")
