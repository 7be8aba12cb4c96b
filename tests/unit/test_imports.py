"""Importing a module does nothing: no log level or handler, no thread, path or signal changes."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter

import grimp
import pytest

from kb_cli.parts import PARTS as CLI
from kb_engine.parts import PARTS as ENGINE
from kb_load.processes import clean_environment
from kb_server.parts import PARTS as SERVER
from tests.support.stack import ROOT

pytestmark = pytest.mark.process

WATCH = """
import csv, gc, importlib, json, logging, os, signal, sys, threading

OURS = ("kb_", "mcp_aiohttp", "mcp", "aiohttp", "anyio", "asyncio")  # libraries set levels of their own

def state():
    loggers = {
        name: [logger.level, len(logger.handlers), len(logger.filters)]
        for name, logger in [*logging.root.manager.loggerDict.items(), ("root", logging.root)]
        if isinstance(logger, logging.Logger) and (name == "root" or name.startswith(OURS))
    }
    return {
        "loggers": {name: found for name, found in loggers.items() if name == "root" or any(found)},
        "sys.path": list(sys.path),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "environment": dict(os.environ),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
        "garbage collector": [gc.isenabled(), *gc.get_threshold()],
        "csv": csv.field_size_limit(),
    }

changed, imported, before = [], 0, state()
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.startswith(("kb_", "mcp_aiohttp")):
            raise
        before = state()
        continue  # of an extra that is not installed
    imported += 1
    after = state()
    changed += [f"{name}: {part}" for part in after if after[part] != before[part]]
    before = after
print(json.dumps([imported, changed]))
"""


def test_no_modules_import_each_other_in_a_cycle() -> None:
    """Imports for type checking count as well."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    graph = grimp.build_graph(*project["root_packages"], cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    TopologicalSorter(imports).prepare()


NEEDED = {("kb_cli.imported", "kb_cli.exported"), ("kb_cli.imported", "kb_cli.sync")}
"""Optional parts, each with another one that it imports."""


def test_no_module_imports_an_optional_part_that_may_be_away() -> None:
    graph = grimp.build_graph("kb_cli", "kb_engine", "kb_server", "kb_simulator", cache_dir=None)
    part_of = dict.fromkeys(graph.modules, "")
    for part in (*CLI, *ENGINE, *SERVER):
        part_of |= dict.fromkeys((part, *graph.find_descendants(part)), part)
    importing = {
        (inside, part)
        for name, inside in part_of.items()
        for imported in graph.find_modules_directly_imported_by(name)
        if (part := part_of[imported]) not in ("", inside)
    }
    assert importing == NEEDED


def test_the_architecture_names_each_optional_part() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    parts = [part.replace(".", "/") for part in (*CLI, *ENGINE, *SERVER)]
    assert [part for part in parts if f"| `{part}/`" not in text] == []


def test_no_module_does_anything_when_it_is_imported() -> None:
    """All modules of all packages are imported in one process of their own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    folders = [ROOT / package for package in [*project["targets"]["wheel"]["packages"], "load/bench"]]
    names = [
        ".".join(file.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
        for folder in folders
        for file in sorted(folder.rglob("*.py"))
    ]
    # Locust patches `ssl`, which fails after the client of Qdrant has imported urllib3.
    names.sort(key=lambda name: name != "kb_load.locustfile")
    done = subprocess.run(
        [sys.executable, "-P", "-c", WATCH, *names],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imported, changed = json.loads(done.stdout.splitlines()[-1])
    assert changed == []
    assert imported > len(names) // 2
