"""The supported clients: their configuration files, and the form of their entries.

The files are those in the clients' own documentation; Claude Code, Codex and Gemini are tested themselves
(`tests/conformance`).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

Entry: TypeAlias = dict[str, Any]
Format: TypeAlias = Literal["json", "toml"]


@dataclass(frozen=True, slots=True)
class Machine:
    """The location of a user's configuration; `platform` is that of `sys`."""

    home: Path
    environ: Mapping[str, str]
    platform: str = sys.platform

    def folder(self, variable: str, default: str) -> Path:
        """Return the folder that a variable names, or by default a folder in the home folder."""
        return Path(self.environ.get(variable) or self.home / default).expanduser()

    @property
    def applications(self) -> Path:
        """Return the folder in which desktop applications keep their settings."""
        if self.platform == "darwin":
            return self.home / "Library/Application Support"
        if self.platform == "win32":
            return self.folder("APPDATA", "AppData/Roaming")
        return self.folder("XDG_CONFIG_HOME", ".config")


@dataclass(frozen=True, slots=True)
class Server:
    """The properties of kb's server in a client's entry."""

    url: str
    """URL of the endpoint, as in http://127.0.0.1:3000/mcp."""
    key: str
    """Bearer key of the server; empty if it needs no key."""
    engine: Mapping[str, str]
    """Environment variables by which `kb stdio` finds the engine, for a client that starts its servers."""
    engine_key: str
    toolset: str = "kb"

    def of(self, toolset: str) -> Server:
        """Return the same server, as an entry for the tools of a toolset."""
        return self if toolset == "kb" else replace(self, url=f"{self.url}/{toolset}", toolset=toolset)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@dataclass(frozen=True, slots=True)
class Client:
    """A program that runs agents."""

    title: str
    file: Callable[[Machine], Path]
    entry: Callable[[Server], Entry]
    place: tuple[str, ...] = ("mcpServers",)
    """The path of members to the servers in the file, the outermost first."""
    format: Format = "json"
    program: str = ""
    """Its name on the PATH, if it has one."""
    skill: Callable[[Machine], Path] | None = None
    """The file of kb's skill, for a client whose folder of skills `kb connect` fills."""

    def is_installed(self, machine: Machine) -> bool:
        """True if its program is on the PATH, or its own folder of settings is not empty."""
        if self.program and shutil.which(self.program, path=machine.environ.get("PATH")):
            return True
        folder = self.file(machine).parent
        return folder != machine.home and folder.is_dir() and any(folder.iterdir())


_KEYS = frozenset({"authorization", "kb_api_key"})
"""Names of the header and of the variable that hold a key, in lower case."""


def leads_to(found: object, wanted: Entry) -> bool:
    """True if a client's entry has the address of the `wanted` one; keys and further members may differ."""
    if not isinstance(found, dict):
        return False
    bare = _without(_KEYS, found)
    return all(bare.get(name) == value for name, value in _without(_KEYS, wanted).items() if value)


def merged(found: object, wanted: Entry) -> Entry:
    """Return the entry to write: that of the same address keeps its further members, and its key if `wanted`
    has none. A key never goes to another address.
    """
    if not (isinstance(found, dict) and leads_to(found, wanted)):
        return wanted
    entry = dict(found)
    for name, value in wanted.items():
        if isinstance(value, dict):
            kept = _without({key.lower() for key in value}, {name: found.get(name, {})})
            value = kept[name] | value
        entry[name] = value
    return entry


def _without(names: Container[str], entry: Entry) -> Entry:
    """Return an entry without the members of its objects with these names, in lower case."""
    return {
        name: {key: each for key, each in value.items() if key.lower() not in names}
        if isinstance(value, dict)
        else value
        for name, value in entry.items()
    }


def authorization(entry: Entry) -> str | None:
    """Return the header `Authorization` of an entry, empty if it has none, or None if only the client knows
    it: from a variable of its environment, for example.
    """
    headers = {
        key.lower(): value for each in entry.values() if isinstance(each, dict) for key, value in each.items()
    }
    value = headers.get("authorization", "")
    is_known = isinstance(value, str) and value.isascii() and value.isprintable() and "${" not in value
    return value if is_known and not entry.keys() & _FROM_VARIABLES else None


_FROM_VARIABLES = frozenset({"bearer_token_env_var", "env_http_headers"})
"""Members of Codex's entries that name variables with keys."""


def _over_http(url: str = "url", headers: str = "headers", **members: str) -> Callable[[Server], Entry]:
    """Return the entry of an HTTP client, with its names for the URL and for headers."""

    def entry(server: Server) -> Entry:
        made: Entry = {**members, url: server.url}
        return made | {headers: server.headers} if server.headers else made

    return entry


def _over_stdio(server: Server) -> Entry:
    """Return the entry of a stdio client, with this Python: desktop applications have no terminal's PATH."""
    environment = dict(server.engine)
    if server.engine_key:
        environment["KB_API_KEY"] = server.engine_key
    toolset = [] if server.toolset == "kb" else ["--toolset", server.toolset]
    return {"command": sys.executable, "args": ["-m", "kb_cli.main", "stdio", *toolset], "env": environment}


def _zed(machine: Machine) -> Path:
    if machine.platform == "win32":
        return machine.applications / "Zed/settings.json"
    return machine.folder("XDG_CONFIG_HOME", ".config") / "zed/settings.json"


CLIENTS: Mapping[str, Client] = {
    "claude-code": Client(
        "Claude Code",
        lambda machine: machine.folder("CLAUDE_CONFIG_DIR", ".") / ".claude.json",
        _over_http(type="http"),
        program="claude",
        skill=lambda machine: machine.folder("CLAUDE_CONFIG_DIR", ".claude") / "skills/kb/SKILL.md",
    ),
    "claude-desktop": Client(
        "Claude Desktop",
        lambda machine: machine.applications / "Claude/claude_desktop_config.json",
        _over_stdio,
    ),
    "cursor": Client(
        "Cursor", lambda machine: machine.home / ".cursor/mcp.json", _over_http(), program="cursor"
    ),
    "vscode": Client(
        "VS Code",
        lambda machine: machine.applications / "Code/User/mcp.json",
        _over_http(type="http"),
        ("servers",),
        program="code",
    ),
    "codex": Client(
        "Codex",
        lambda machine: machine.folder("CODEX_HOME", ".codex") / "config.toml",
        _over_http(headers="http_headers"),
        ("mcp_servers",),
        "toml",
        program="codex",
    ),
    "gemini": Client(
        "Gemini CLI",
        lambda machine: machine.home / ".gemini/settings.json",
        _over_http(type="http"),
        program="gemini",
    ),
    "zed": Client("Zed", _zed, _over_http(), ("context_servers",), program="zed"),
    "windsurf": Client(
        "Windsurf",
        lambda machine: machine.home / ".codeium/windsurf/mcp_config.json",
        _over_http(url="serverUrl"),
        program="windsurf",
    ),
}
"""The clients by their names in `kb connect`."""
