"""The package `mcp_aiohttp` alone: its wheel, without kb installed, hosts the example of docs/hosting.md."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from kb_load.processes import free_port
from tests.support.patience import ANSWER_SECONDS
from tests.support.stack import ROOT, Process, wait_until_ready

pytestmark = pytest.mark.process

SOURCE = ROOT / "server" / "mcp_aiohttp"
CALL = {"name": "test_simple_text", "arguments": {}}

_IMPORT_ALL = """
import pkgutil, sys
from importlib import import_module
import mcp_aiohttp
for module in pkgutil.walk_packages(mcp_aiohttp.__path__, "mcp_aiohttp."):
    import_module(module.name)
print(*sorted({name.partition(".")[0] for name in sys.modules if name.startswith("kb_")}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built only from the sources of the package and the licence."""
    folder = tmp_path_factory.mktemp("wheel")
    project = folder / "server" / "mcp_aiohttp"
    shutil.copytree(SOURCE, project, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "LICENSE", folder)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=project, check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment: the wheel, and the libraries of this one, but not kb.

    Path files (.pth) in a folder that was itself added by a path file are ignored, and kb is installed here
    by one.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    ZipFile(wheel).extractall(site)
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"])
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def hosted(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the SDK's example server, hosted by the wheel."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(ROOT / "examples" / "hosting", folder / "examples" / "hosting")
    port = free_port()
    process = Process.start(
        *("-m", "examples.hosting.serve", str(port)),
        python=str(python),
        PYTHONPATH=str(folder),
        PYTHONSAFEPATH="1",
    )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/healthz", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stop()


def test_the_wheel_has_its_name_licence_and_type_marker(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [archive.read(name).decode() for name in names if name.endswith("METADATA")]
    assert "Name: mcp-aiohttp\n" in metadata
    assert "License-Expression: MIT\n" in metadata
    assert {"mcp_aiohttp/py.typed", "mcp_aiohttp/LICENSE"} <= set(names)
    assert not [name for name in names if name.endswith("pyproject.toml") or name.startswith("kb_")]


def test_the_wheel_declares_exactly_the_libraries_that_it_imports(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        sources = [archive.read(name) for name in archive.namelist() if name.endswith(".py")]
        [metadata] = [archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA")]
    imported = {top for source in sources for top in _imported_by(source)}
    libraries = imported - sys.stdlib_module_names - {"mcp_aiohttp"}
    distributions = packages_distributions()
    assert {name for library in libraries for name in distributions[library]} == set(
        re.findall(r"^Requires-Dist: ([\w.-]+)", metadata, re.MULTILINE)
    )


def _imported_by(source: bytes) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.partition(".")[0]


def test_every_module_is_imported_without_kb(python: Path) -> None:
    done = subprocess.run([python, "-c", _IMPORT_ALL], capture_output=True, text=True, check=True, env={})
    assert done.stdout.strip() == ""
    missing = subprocess.run([python, "-c", "import kb_server"], capture_output=True, text=True, check=False)
    assert "No module named 'kb_server'" in missing.stderr


def test_the_example_of_the_sdk_answers(hosted: str) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL}
    answer = httpx.post(f"{hosted}/mcp", json=message, timeout=ANSWER_SECONDS).json()
    assert answer["result"]["content"][0]["text"] == "This is a simple text response for testing."
