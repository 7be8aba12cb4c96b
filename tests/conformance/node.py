"""Node 22 and the packages beside this file: installed when missing, and run within bounds of time."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUITE = "@modelcontextprotocol/conformance/dist/index.js"
CLAUDE = "@anthropic-ai/claude-code/bin/claude.exe"
"""Called so on every system; a program of its own, not a script."""
INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"

_MODULES = HERE / "node_modules"
_INSTALLED = _MODULES / ".package-lock.json"
_INSTALL_SECONDS = 900.0


class NodeError(Exception):
    """Node or a package cannot be had; the message says what to do."""


def install() -> None:
    """Install what `package-lock.json` pins, unless it is there already.

    Node 22 itself is one of the packages: any Node with npm can fetch it.

    Raises:
        NodeError: there is no npm, or it fails.
    """
    lock = HERE / "package-lock.json"
    if _INSTALLED.exists() and _INSTALLED.stat().st_mtime >= lock.stat().st_mtime:
        return
    npm = shutil.which("npm")
    if npm is None:
        raise NodeError("npm is needed, of any Node; it fetches Node 22 and the packages")
    done = subprocess.run(
        [npm, "ci"], cwd=HERE, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS
    )
    if done.returncode != 0:
        raise NodeError(f"npm ci failed in {HERE}:\n{done.stderr}")
    # The binary was linked out of it; what stays is documentation, headers and another npm.
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
    """Run Claude Code as a user whose home is `home`, and who has configured nothing else.

    Raises:
        NodeError: it takes longer than `seconds`.
    """
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return _bounded([str(_MODULES / CLAUDE), *arguments], home, environment, seconds)


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
