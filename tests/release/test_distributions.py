"""Wheel and source distribution, as built by `make dist`: each in an environment without a checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from kb_cli import VERSION
from kb_load.processes import clean_environment, free_port
from tests.conformance import node
from tests.support.patience import COMMAND_SECONDS
from tests.support.stack import ROOT, Process, wait_until_ready

pytestmark = pytest.mark.process

PACKAGED = [
    "kb_cli/connect/SKILL.md",
    "kb_cli/main.py",
    "kb_engine/embed/minilm/NOTICE",
    "kb_verify/requirements.toml",
    "kb_server/py.typed",
]


VERIFY = """
import sys
from kb_verify import Target, run

results = run(Target(sys.argv[1]), only=["-k", "test_state"])
print(results.counts())
sys.exit(not (results.passed and results.outcomes))
"""
"""Collects the whole suite, and runs some of it."""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distributions, built only from the files in Git, without other files of the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    bundle = [sys.executable, "deploy/bundle.py", str(folder)]
    subprocess.run(bundle, cwd=source, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module", params=["*.whl", "*.tar.gz"], ids=["wheel", "sdist"])
def kb(request: pytest.FixtureRequest, dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `kb` in a new environment: the distribution, and the libraries of this one, but not its kb.

    Path files (.pth) in a folder that was itself added by a path file are ignored, and kb is installed here
    by one.
    """
    [built] = dist.glob(request.param)
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    [site] = environment.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"])
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--quiet",
    ]
    done = subprocess.run(
        [*install, "--ignore-installed", str(built)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return environment / "bin" / "kb"


def run(kb: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(kb), *arguments], cwd=cwd, env=clean_environment(), capture_output=True, text=True, check=False
    )


def test_there_is_one_of_each_with_what_it_needs(dist: Path) -> None:
    [wheel], [source] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with ZipFile(wheel) as archive:
        packaged = archive.namelist()
        [metadata] = [archive.read(name).decode() for name in packaged if name.endswith("/METADATA")]
    with tarfile.open(source) as archive:
        sources = [name.partition("/")[2] for name in archive.getnames()]
    assert set(PACKAGED) <= set(packaged)
    assert {"requirements.lock", "Makefile", "LICENSE", "docs/index.md"} <= set(sources)
    assert f"Version: {VERSION.removeprefix('v')}\n" in metadata
    assert not [name for name in packaged if name.startswith(("tests/", "docs/"))]


def test_claude_accepts_plugin_marketplace_and_bundle(dist: Path, tmp_path: Path) -> None:
    node.install()
    [bundle] = dist.glob("*.mcpb")
    manifests = [str(ROOT / ".claude-plugin" / name) for name in ("plugin.json", "marketplace.json")]
    done = [
        *(
            node.claude(tmp_path, "plugin", "validate", "--strict", each, seconds=COMMAND_SECONDS)
            for each in manifests
        ),
        node.run(node.MCPB, "unpack", str(bundle), str(tmp_path / "unpacked"), seconds=COMMAND_SECONDS),
        node.run(
            node.MCPB, "validate", str(tmp_path / "unpacked" / "manifest.json"), seconds=COMMAND_SECONDS
        ),
    ]
    assert [each.stdout + each.stderr for each in done if each.returncode != 0] == []
    assert "skills: kb:kb" in done[0].stdout
    [wheel] = dist.glob("*.whl")
    assert (tmp_path / "unpacked" / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_command_says_its_version(kb: Path, tmp_path: Path) -> None:
    done = run(kb, "--version", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert VERSION.removeprefix("v") in done.stdout


def test_the_installed_command_imports_no_module_of_the_checkout(kb: Path, tmp_path: Path) -> None:
    script = (
        "import kb_cli, kb_engine, kb_server; print(kb_cli.__file__, kb_engine.__file__, kb_server.__file__)"
    )
    python = kb.with_name("python")
    done = subprocess.run([python, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert all(path.startswith(str(kb.parents[1])) for path in done.stdout.split())


@pytest.mark.parametrize("kb", ["*.whl"], ids=["wheel"], indirect=True)
def test_the_simulator_runs_and_is_verified(kb: Path, tmp_path: Path) -> None:
    port = free_port()
    process = Process.start("sim", "--port", str(port), python=str(kb))
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/readyz", process)
        done = subprocess.run(
            [kb.with_name("python"), "-c", VERIFY, f"http://127.0.0.1:{port}"],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        process.stop()
    assert done.returncode == 0, done.stdout + done.stderr
