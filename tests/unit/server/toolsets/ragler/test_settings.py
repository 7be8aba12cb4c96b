"""The settings of RAGler's document: names, defaults, and the port."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest

from kb_config.settings import SettingsError
from kb_server.services import Services, ragler_key
from kb_server.settings import ServerSettings
from tests.support.ragler import DESCRIPTIONS
from tests.support.stack import ROOT

MCP_JSON = ROOT / "deploy" / "ragler" / ".mcp.json"


@pytest.mark.requirement("R35", "R36", "R37", "R38", "R40")
@pytest.mark.parametrize(
    ("environ", "settings"),
    [
        ({}, ("http://localhost:3000", "", "info", True, 30_000)),
        (
            {
                "RAGLER_API_URL": "https://ragler.example",
                "RAGLER_API_KEY": "k",
                "LOG_LEVEL": "debug",
                "ENABLE_METRICS": "false",
                "REQUEST_TIMEOUT": "1500",
            },
            ("https://ragler.example", "k", "debug", False, 1_500),
        ),
    ],
)
def test_variables_and_defaults_are_the_documents(environ: dict[str, str], settings: tuple[Any, ...]) -> None:
    read = ServerSettings.read(environ)
    logs = (read.log_level, read.enable_metrics, read.request_timeout_ms)
    assert (read.ragler_api_url, read.ragler_api_key, *logs) == settings


@pytest.mark.requirement("R37")
@pytest.mark.parametrize("level", ["debug", "info", "warn", "error"])
def test_the_four_levels(level: str) -> None:
    assert ServerSettings.read({"LOG_LEVEL": level}).log_level == level
    for written in (level.upper(), level.title()):
        assert ServerSettings.read({"LOG_LEVEL": written}).log_level == level
    with pytest.raises(SettingsError, match="LOG_LEVEL"):
        ServerSettings.read({"LOG_LEVEL": "trace"})


@pytest.mark.requirement("R39")
@pytest.mark.parametrize(
    ("environ", "port"),
    [
        ({"KB_TOOLSETS": "ragler"}, 3001),
        ({"KB_TOOLSETS": "ragler", "MCP_SERVER_PORT": "4001"}, 4001),
        ({"KB_TOOLSETS": "ragler", "KB_MCP_PORT": "4000"}, 4000),
        ({"KB_TOOLSETS": "ragler", "KB_MCP_PORT": "4000", "MCP_SERVER_PORT": "4001"}, 4000),
        ({}, 3000),
        ({"KB_TOOLSETS": "kb,ragler"}, 3000),
        ({"MCP_SERVER_PORT": "4001"}, 4001),
        ({"MCP_SERVER_PORT": "3001"}, 3001),
        ({"MCP_SERVER_PORT": ""}, 3000),
    ],
)
def test_kb_mcp_port_precedes_mcp_server_port(environ: dict[str, str], port: int) -> None:
    assert ServerSettings.read(environ).port == port


@pytest.mark.requirement("R39")
def test_flags_and_the_file_have_their_say_over_the_port(tmp_path: Path) -> None:
    file = tmp_path / "kb.toml"
    file.write_text('KB_TOOLSETS = "ragler"\n')
    assert ServerSettings.read({}, file=file).port == 3001
    assert ServerSettings.read({}, file=file, port="5000").port == 5000
    assert ServerSettings.read({}, file=file, toolsets="kb").port == 3000
    file.write_text("MCP_SERVER_PORT = 4001\n")
    assert ServerSettings.read({}, file=file).port == 4001


def test_where_the_port_is_from_can_be_read() -> None:
    rows = {row.variable: row for row in ServerSettings.describe({"MCP_SERVER_PORT": "4001"})}
    assert (rows["KB_MCP_PORT"].value, rows["KB_MCP_PORT"].source) == ("4001", "MCP_SERVER_PORT")
    assert (rows["MCP_SERVER_PORT"].value, rows["MCP_SERVER_PORT"].source) == ("4001", "environment")
    assert rows["RAGLER_API_KEY"].value == "not set"


@pytest.mark.parametrize(
    ("environ", "configured", "key"),
    [
        ({}, False, ""),
        ({"RAGLER_API_KEY": "r"}, True, "r"),
        ({"KB_API_KEY": "e"}, False, ""),
        ({"RAGLER_API_URL": "http://127.0.0.1:8000/"}, True, ""),
        ({"RAGLER_API_URL": "http://127.0.0.1:8000", "KB_API_KEY": "e"}, True, "e"),
        ({"RAGLER_API_URL": "http://127.0.0.1:8000", "KB_API_KEY": "e", "RAGLER_API_KEY": "r"}, True, "r"),
        ({"RAGLER_API_URL": "http://127.0.0.1:8001", "KB_API_KEY": "e"}, True, ""),
    ],
)
def test_the_engines_key_is_the_backends_where_the_backend_is_the_engine(
    environ: dict[str, str], configured: bool, key: str
) -> None:
    settings = ServerSettings.read(environ)
    assert Services(settings).ragler_is_configured is configured
    assert ragler_key(settings) == key


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MCP_SERVER_PORT", "70000"),
        *(
            ("RAGLER_API_URL", url)
            for url in ("ragler", "ftp://ragler", "http://", "http://ragler:x", "http://ragler:0")
        ),
        ("RAGLER_API_KEY", "se\ncret"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_at_start_by_its_name(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable) as refused:
        Services(ServerSettings.read({variable: value}))
    assert "cret" not in str(refused.value)


@pytest.mark.requirement("R31", "R34")
def test_it_names_server_and_tools() -> None:
    told = json.loads(MCP_JSON.read_text("utf-8"))
    assert list(told) == ["name", "version", "description", "server", "tools"]
    assert (told["name"], told["version"]) == ("ragler", "1.0.0")
    assert told["description"] == "RAGler Knowledge Management System MCP Server"
    assert {tool["name"]: tool["description"] for tool in told["tools"]} == DESCRIPTIONS


def test_beside_it_stands_the_form_that_clients_read() -> None:
    server = json.loads(MCP_JSON.read_text("utf-8"))["server"]
    entry = json.loads(MCP_JSON.with_name("mcp.json").read_text("utf-8"))["mcpServers"]["ragler"]
    assert (entry["command"], entry["args"]) == (server["command"], server["args"])
    assert entry["env"].items() - {("LOG_LEVEL", "warn")} <= server["env"].items()


@pytest.mark.requirement("R32", "R33")
def test_it_has_the_command_and_the_four_variables() -> None:
    server = json.loads(MCP_JSON.read_text("utf-8"))["server"]
    assert (server["command"], server["args"]) == ("kb", ["stdio", "--toolset", "ragler"])
    assert server["env"] == {
        "RAGLER_API_URL": "http://localhost:3000",
        "RAGLER_API_KEY": "${RAGLER_API_KEY}",
        "LOG_LEVEL": "info",
        "ENABLE_METRICS": "true",
    }
    filled = {
        name: string.Template(value).substitute(RAGLER_API_KEY="k") for name, value in server["env"].items()
    }
    defaults = ServerSettings.read({})
    read = ServerSettings.read(filled)
    assert read.ragler_api_key == "k"
    for name in ("ragler_api_url", "log_level", "enable_metrics"):
        assert getattr(read, name) == getattr(defaults, name)
