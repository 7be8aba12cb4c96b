"""`kb connect` changes one member of one file after confirmation, and reports the change."""

from __future__ import annotations

import json
import stat
import sys
import tomllib
from pathlib import Path

import pytest

from kb_cli.connect import connect_command as command
from kb_cli.connect.clients import CLIENTS, Machine
from kb_cli.output import Exit
from kb_server.schema import input_schema
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import EXTRA, EXTRA_TOKENS, build_toolset
from tests.support.stack import ROOT
from tests.unit.cli.conftest import Kb, RunningEngine

KEY = "a-key-for-agents"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without any client."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "KB_MCP_API_KEY", "KB_MCP_PORT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.mark.parametrize("found", ["", "A skill that somebody changed.\n"])
def test_claude_code_gets_the_skill_unless_it_has_another(kb: Kb, home: Path, found: str) -> None:
    skill = home / ".claude/skills/kb/SKILL.md"
    if found:
        skill.parent.mkdir(parents=True)
        skill.write_text(found)
    _, out, err = kb("connect", "claude-code", "--yes")
    assert (str(skill) in out, f"{skill} differs" in err) == (not found, bool(found))
    assert skill.read_text() == (found or (ROOT / "skills/kb/SKILL.md").read_text())
    kb("connect", "claude-code", "--undo", "--yes")
    assert skill.exists() == skill.parent.exists() == bool(found)


def file_of(client: str, home: Path) -> Path:
    return CLIENTS[client].file(Machine(home, {}))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_is_connected_and_disconnected(kb: Kb, home: Path, client: str) -> None:
    file = file_of(client, home)
    status, out, _ = kb("connect", client, "--yes")
    assert status == Exit.OK
    assert f"+++ {file}" in out
    assert f"{CLIENTS[client].title}: kb configured" in out
    text = file.read_text()
    found = (tomllib if client == "codex" else json).loads(text)
    for key in (*CLIENTS[client].place, "kb"):
        found = found[key]
    if client == "claude-desktop":
        assert found["args"] == ["-m", "kb_cli.main", "stdio"]
        assert found["command"] == sys.executable
    else:
        assert "http://127.0.0.1:3000/mcp" in found.values()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert kb("connect", client, "--yes")[:2] == (
        Exit.OK,
        f"{CLIENTS[client].title}: configuration unchanged.\n",
    )
    assert kb("connect", client, "--undo", "--yes")[0] == Exit.OK
    assert not file.exists()


@pytest.mark.parametrize("client", CLIENTS)
def test_each_toolset_has_an_entry_of_its_own(kb: Kb, home: Path, client: str) -> None:
    file = file_of(client, home)
    assert f"kb connect {client} --toolsets kb-extra" in kb("connect", client, "--yes")[1]
    status, out, _ = kb("connect", client, "--yes", "--toolsets", "kb,kb-extra")
    assert (status, "--toolsets" in out) == (Exit.OK, False)
    found = (tomllib if client == "codex" else json).loads(file.read_text())
    for key in CLIENTS[client].place:
        found = found[key]
    assert found.keys() == {"kb", "kb-extra"}
    if client == "claude-desktop":
        assert found["kb-extra"]["args"] == ["-m", "kb_cli.main", "stdio", "--toolset", "kb-extra"]
    else:
        assert "http://127.0.0.1:3000/mcp/kb-extra" in found["kb-extra"].values()
    assert kb("connect", client, "--undo", "--yes", "--toolsets", "kb,kb-extra")[0] == Exit.OK
    assert not file.exists()


def test_a_toolset_that_there_is_not_is_refused(kb: Kb) -> None:
    status, _, err = kb("connect", "cursor", "--yes", "--toolsets", "kb,none")
    assert (status, "there is no toolset 'none'" in err) == (Exit.USAGE, True)


def test_the_token_count_of_kb_extra_is_within_a_tenth() -> None:
    """Estimated at four characters a token, from the definitions that a client sends to a model."""
    tools = build_toolset(EXTRA, Services(ServerSettings(home=Path("unused")))).tools
    listed = [
        {"name": tool.name, "description": tool.description, "parameters": input_schema(tool.arguments)}
        for tool in tools
    ]
    assert len(json.dumps(listed, separators=(",", ":"))) / 4 == pytest.approx(EXTRA_TOKENS, rel=0.1)


@pytest.mark.parametrize("client", ["gemini", "codex"])
def test_a_file_that_kb_made_and_another_program_changed_stays(kb: Kb, home: Path, client: str) -> None:
    file = file_of(client, home)
    kb("connect", client, "--yes")
    file.write_text("# mine\n" + file.read_text() if client == "codex" else file.read_text() + "\n")
    kb("connect", client, "--undo", "--yes")
    assert not file.read_text().replace("# mine", "").strip("{} \n")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_key_is_written_kept_and_never_printed(
    kb: Kb, home: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    """Neither in a line that is added nor in one that goes; another address does not get it."""
    monkeypatch.setenv("KB_MCP_API_KEY", KEY)
    monkeypatch.setenv("KB_API_KEY", KEY)
    shown = kb("connect", client, "--yes")[1]
    text = file_of(client, home).read_text()
    assert KEY in text
    for name in ("KB_MCP_API_KEY", "KB_API_KEY"):
        monkeypatch.delenv(name)
    assert "configuration unchanged" in kb("connect", client, "--yes")[1]
    assert file_of(client, home).read_text() == text
    monkeypatch.setenv("KB_MCP_PORT", "9")
    monkeypatch.setenv("KB_ENGINE_URL", "http://127.0.0.1:9")
    shown += kb("connect", client, "--yes")[1]
    assert KEY not in file_of(client, home).read_text()
    kb("connect", client, "--undo", "--yes")
    file_of(client, home).write_text(text)
    shown += kb("connect", client, "--undo", "--yes")[1]
    assert ("…" in shown, KEY in shown) == (True, False)


@pytest.mark.parametrize(
    "text",
    [
        '{"Authorization":\n\n "Bearer SECRET"}',
        '{"args": ["--header", "Authorization: Bearer SECRET", "--api-key", "SECRET"]}',
        '{"url": "http://x/mcp?api_key=SECRET&a=b", "X-Api-Key" : \'a\\\'SECRET\'}',
        '{"env": {"GITHUB_TOKEN": "a \\" SECRET", "n": 1}}',
        'token = """\nSECRET\nSECRET"""\n[a]\nhttp_headers = { Authorization = \'Bearer SECRET\\\' }\n',
    ],
)
def test_secrets_of_other_entries_are_hidden_in_a_difference(text: str) -> None:
    shown = command._difference(Path("f"), text, "{}")
    assert ("…" in shown, "SECRET" in shown) == (True, False)
    assert command._difference(Path("f"), text, text.replace("SECRET", "OTHER"))


def test_further_members_of_an_entry_stay(kb: Kb, home: Path) -> None:
    file = file_of("cursor", home)
    file.parent.mkdir(parents=True)
    url, headers = "http://127.0.0.1:3000/mcp", {"authorization": f"Bearer {KEY}", "X-Trace": "1"}
    file.write_text(json.dumps({"mcpServers": {"kb": {"url": url, "timeout": 9, "headers": headers}}}))
    kb("connect", "cursor", "--yes", "--api-key", "another")
    assert json.loads(file.read_text())["mcpServers"]["kb"] == {
        "url": url,
        "timeout": 9,
        "headers": {"X-Trace": "1", "Authorization": "Bearer another"},
    }


def test_connecting_keeps_comments_mode_and_other_entries_of_the_file(kb: Kb, home: Path) -> None:
    file = file_of("zed", home)
    file.parent.mkdir(parents=True)
    before = (
        '// mine\n{\n  "theme": "One", // a comment\n  "context_servers": {"x": {"url": "http://x"}},\n}\n'
    )
    file.write_text(before)
    file.chmod(0o640)
    kb("connect", "zed", "--yes")
    assert "// a comment" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    kb("connect", "zed", "--undo", "--yes")
    assert file.read_text().replace("\n  }", "}") == before


def test_a_link_stays_a_link(kb: Kb, home: Path, tmp_path: Path) -> None:
    """Settings are often kept elsewhere, with a link to them."""
    file = file_of("gemini", home)
    file.parent.mkdir(parents=True)
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    file.symlink_to(kept)
    kb("connect", "gemini", "--yes")
    assert file.is_symlink()
    assert "kb" in json.loads(kept.read_text())["mcpServers"]
    kb("connect", "gemini", "--undo", "--yes")
    assert (file.is_symlink(), json.loads(kept.read_text())) == (True, {})


def test_a_file_that_was_empty_stays_when_kb_is_taken_out(kb: Kb, home: Path) -> None:
    for client in ("gemini", "codex"):
        file = file_of(client, home)
        file.parent.mkdir(parents=True)
        file.touch()
        kb("connect", client, "--yes")
        assert kb("connect", client, "--undo", "--yes")[0] == Exit.OK
        assert not file.read_text().strip("{} \n")


def test_without_a_yes_nothing_is_written(kb: Kb, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "confirmed", lambda _question: False)
    status, out, err = kb("connect", "cursor")
    assert (status, "+++" in out, "is unchanged" in err) == (Exit.FAILED, True, True)
    assert not home.exists()


def test_without_a_terminal_connect_asks_for_the_option_yes(kb: Kb, home: Path) -> None:
    status, _, err = kb("connect", "cursor")
    assert (status, "--yes" in err) == (Exit.USAGE, True)
    assert not home.exists()


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"mcpServers": 3}', b'{"mcpServers": null}', b"\xff\xfe{}"]
)
def test_a_file_that_is_none_is_left_alone(kb: Kb, home: Path, content: bytes) -> None:
    file = file_of("cursor", home)
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    status, _, err = kb("connect", "cursor", "--yes")
    assert (status, str(file) in err, file.read_bytes()) == (Exit.FAILED, True, content)
    assert ["cursor", "file not readable"] in [[each["client"], each["state"]] for each in kb.json("connect")]


def test_a_file_that_changed_meanwhile_is_left_alone(
    kb: Kb, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client itself may write its configuration at the same time."""
    file = file_of("cursor", home)

    def agreed(_question: str) -> bool:
        file.parent.mkdir(parents=True)
        file.write_text('{"a": 1}')
        return True

    monkeypatch.setattr(command, "confirmed", agreed)
    status, _, err = kb("connect", "cursor")
    assert (status, "changed meanwhile" in err, file.read_text()) == (Exit.FAILED, True, '{"a": 1}')


def test_the_option_print_shows_the_entry_and_writes_no_file(kb: Kb, home: Path) -> None:
    status, out, _ = kb("connect", "codex", "--print")
    assert status == Exit.OK
    assert '[mcp_servers.kb]\nurl = "http://127.0.0.1:3000/mcp"' in out
    assert kb.json("connect", "vscode", "--print") == {
        "servers": {"kb": {"type": "http", "url": "http://127.0.0.1:3000/mcp"}}
    }
    assert not home.exists()


def test_the_clients_are_listed(kb: Kb, home: Path) -> None:
    kb("connect", "vscode", "--yes", "--name", "notes")
    states = {each["client"]: each["state"] for each in kb.json("connect", "--name", "notes")}
    assert states == {name: "connected" if name == "vscode" else "no file" for name in CLIENTS}
    assert kb.json("connect")[list(CLIENTS).index("vscode")]["state"] == "not connected"


def test_one_that_leads_to_another_kb_is_not_called_connected(
    kb: Kb, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kb doctor` reports the same state."""
    there = ("--endpoint", "http://127.0.0.1:9/elsewhere/mcp")
    kb("connect", "cursor", "--yes", *there)
    monkeypatch.setenv("KB_HOME", str(home / "kb"))
    place = list(CLIENTS).index("cursor")
    states = [kb.json("connect", *arguments)[place]["state"] for arguments in ((), there)]
    assert states == ["set otherwise", "connected"]


def test_a_client_that_speaks_no_http_takes_no_endpoint(kb: Kb, home: Path) -> None:
    """Otherwise it would be connected to the kb of this machine instead."""
    status, _, err = kb("connect", "claude-desktop", "--yes", "--endpoint", "https://kb.example.org/mcp")
    assert (status, "KB_ENGINE_URL" in err, home.exists()) == (Exit.USAGE, True, False)


@pytest.mark.parametrize(
    "endpoint",
    ["foo", "", "kb.example.org/mcp", "ftp://kb.example.org", "http://", "http://[/", "http://x:y/"],
)
def test_an_endpoint_that_is_no_url_is_refused(kb: Kb, home: Path, endpoint: str) -> None:
    status, _, err = kb("connect", "cursor", "--yes", "--endpoint", endpoint)
    assert (status, "--endpoint" in err, home.exists()) == (Exit.USAGE, True, False)


def test_connect_reports_a_silent_server_and_a_missing_or_refused_key(
    kb: Kb, home: Path, engine: RunningEngine
) -> None:
    silent = kb("connect", "cursor", "--yes", "--endpoint", "http://127.0.0.1:9/mcp")[2]
    assert "kb up" in silent
    there, key = ("--endpoint", f"{engine.url}/mcp"), engine.key
    for given, state in [("", "key missing"), ("wrong", "key refused"), (key, ""), ("${KEY}", "")]:
        error = kb("connect", "gemini", "--yes", *there, "--api-key", given)[2]
        assert (state in error, "kb keys create" in error) == (True, bool(state))
        listed = kb.json("connect", *there)[list(CLIENTS).index("gemini")]["state"]
        assert listed == (state or "connected")


@pytest.mark.parametrize(
    ("platform", "file"),
    [
        ("linux", "/home/me/.config/Code/User/mcp.json"),
        ("darwin", "/home/me/Library/Application Support/Code/User/mcp.json"),
    ],
)
def test_settings_of_applications_lie_where_the_system_has_them(platform: str, file: str) -> None:
    assert CLIENTS["vscode"].file(Machine(Path("/home/me"), {}, platform)) == Path(file)


def test_variables_of_the_clients_name_other_folders() -> None:
    machine = Machine(
        Path("/home/me"), {"CODEX_HOME": "/c", "CLAUDE_CONFIG_DIR": "/d", "APPDATA": "/a"}, "win32"
    )
    names = ("codex", "claude-code", "zed")
    assert [str(CLIENTS[name].file(machine)) for name in names] == [
        "/c/config.toml",
        "/d/.claude.json",
        "/a/Zed/settings.json",
    ]
