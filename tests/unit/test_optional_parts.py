"""The core works without its optional parts: each is one folder, and one line of a list.

That no part needs another one, except those named in `test_imports.py`, is read from the imports.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from kb_cli.parts import PARTS as CLI
from kb_engine.parts import PARTS as ENGINE
from kb_load.processes import clean_environment
from kb_server.parts import PARTS as SERVER
from tests.support.mcp_http import Caller
from tests.support.stack import ROOT, running_stack

pytestmark = pytest.mark.process

FOLDERS = {"kb_cli": "cli", "kb_engine": "engine", "kb_server": "server"}
PARTS = (*SERVER, *ENGINE, *CLI)
DRIVERS = "jinja2,asyncpg,qdrant_client,openvino"
"""Packages that only optional parts import."""
CORE_TESTS = (
    "tests/unit/config",
    "tests/unit/server/access",
    "tests/unit/cli/test_config.py",
)

IMPORT_CORE = """
import importlib, pkgutil, sys

drivers, *optional = sys.argv[1:]
sys.modules |= dict.fromkeys(drivers.split(","))  # their import fails

def is_core(name):
    return not any(f"{name}.".startswith(f"{part}.") for part in optional) and ".postgres" not in name

for top in ("kb_config", "kb_contracts", "kb_http", "kb_server", "kb_engine", "kb_cli"):
    for found in pkgutil.walk_packages(importlib.import_module(top).__path__, f"{top}."):
        if is_core(found.name) and not found.name.endswith(".__main__"):
            importlib.import_module(found.name)
"""


def without(parts: Iterable[str], copy: Path) -> dict[str, str]:
    """Copy the sources without parts and their lines; return the environment for their import."""
    compiled = shutil.ignore_patterns("__pycache__")
    for folder in ("contracts", "server", "engine", "cli", "simulator", "load"):
        shutil.copytree(ROOT / folder, copy / folder, copy_function=os.symlink, ignore=compiled)
    for part in parts:
        top, _, rest = part.partition(".")
        shutil.rmtree(copy / FOLDERS[top] / top / rest.replace(".", "/"))
        listed = copy / FOLDERS[top] / top / "parts.py"
        lines = listed.read_text("utf-8").splitlines(keepends=True)
        listed.unlink()  # a link to the original
        kept = [line for line in lines if line.strip() != f'"{part}",']
        assert len(kept) == len(lines) - 1
        listed.write_text("".join(kept), "utf-8")
    return {"PYTHONPATH": os.pathsep.join(str(each) for each in copy.iterdir())}


def test_without_optional_parts_kb_searches_and_the_tests_of_the_core_pass(tmp_path: Path) -> None:
    paths = without(PARTS, tmp_path / "sources")
    core = ("-P", "-c", IMPORT_CORE, DRIVERS, *PARTS)
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not process", *CORE_TESTS)
    for command in (core, tests):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=clean_environment(**paths),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    with running_stack(tmp_path / "home", "--single", KB_EMBEDDER="hash", **paths) as stack:
        caller = Caller(stack.mcp_url)
        caller.ok("kb_addnote", text="bees keep warm by shivering", collection="memory")
        assert "shivering" in str(caller.ok("kb_search", query="how do bees keep warm"))
        caller.http.close()
