"""Node 22 and the packages beside this file: installed if missing, and run with time-outs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Any

from tests.support.patience import SUITE_SECONDS

HERE = Path(__file__).resolve().parent
SUITE = "@modelcontextprotocol/conformance/dist/index.js"
CLAUDE = "@anthropic-ai/claude-code/bin/claude.exe"
"""The path on every system; a native program, not a script."""
CODEX = "@openai/codex/bin/codex.js"
GEMINI = "@google/gemini-cli/bundle/gemini.js"
MCPB = "@anthropic-ai/mcpb/dist/cli/cli.js"
INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"

_MODULES = HERE / "node_modules"
_INSTALLED = _MODULES / ".package-lock.json"


class NodeError(Exception):
    """Node or a package is not available; the message says how to correct it."""


def install() -> None:
    """Install the packages in `package-lock.json`, unless they are installed already.

    Node 22 itself is one of the packages: any Node with npm can install it.

    Raises:
        NodeError: npm is missing or fails.
    """
    lock = HERE / "package-lock.json"
    if _INSTALLED.exists() and _INSTALLED.stat().st_mtime >= lock.stat().st_mtime:
        return
    npm = shutil.which("npm")
    if npm is None:
        raise NodeError("npm is needed, of any Node; it fetches Node 22 and the packages")
    done = subprocess.run(
        [npm, "ci"], cwd=HERE, capture_output=True, text=True, check=False, timeout=SUITE_SECONDS
    )
    if done.returncode != 0:
        raise NodeError(f"npm ci failed in {HERE}:\n{done.stderr}")
    # The binary is linked elsewhere; this folder has only documentation, headers and another npm.
    shutil.rmtree(_MODULES / "node" / "node_modules", ignore_errors=True)


def run(
    script: str | Path, *arguments: str, seconds: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script with Node 22: a path, or one within `node_modules`.

    Raises:
        NodeError: it takes longer than `seconds`.
    """
    command = [str(_MODULES / ".bin" / "node"), str(_MODULES / script), *arguments]
    return _bounded(command, HERE, {**os.environ, **(environment or {})}, seconds)


def claude(home: Path, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run Claude Code as a user whose home is `home`.

    Raises:
        NodeError: it takes longer than `seconds`.
    """
    return _bounded([str(_MODULES / CLAUDE), *arguments], home, _environment(home), seconds)


def gemini(home: Path, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run Gemini CLI as such a user, in a trusted folder.

    Raises:
        NodeError: it takes longer than `seconds`.
    """
    command = [str(_MODULES / ".bin" / "node"), str(_MODULES / GEMINI), *arguments]
    return _bounded(command, home, _environment(home) | {"GEMINI_CLI_TRUST_WORKSPACE": "true"}, seconds)


def codex_servers(home: Path, *, seconds: float) -> list[dict[str, Any]]:
    """Return the MCP servers from Codex's app server, after it has tried to connect to each.

    Raises:
        NodeError: there is no answer within `seconds`.
    """
    messages = [
        {"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "kb", "version": "1"}}},
        {"method": "initialized"},
        {"id": 2, "method": "mcpServerStatus/list", "params": {}},
    ]
    with subprocess.Popen(
        [str(_MODULES / ".bin" / "node"), str(_MODULES / CODEX), "app-server"],
        cwd=home,
        env=_environment(home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stop = Timer(seconds, process.kill)
        stop.start()
        try:
            process.stdin.writelines(json.dumps(message) + "\n" for message in messages)
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                if answer.get("id") == 2:
                    servers: list[dict[str, Any]] = answer["result"]["data"]
                    return servers
        finally:
            stop.cancel()
            process.kill()
    raise NodeError(f"codex app-server did not name its servers within {seconds} s")


def _environment(home: Path) -> dict[str, str]:
    """The environment of a user without any configuration."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def _bounded(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise NodeError(f"{' '.join(command)} did not end within {seconds} s") from None


if __name__ == "__main__":
    install()
