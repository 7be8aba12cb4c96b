"""Packages installed before kb itself: all requirements of kb, without kb, as in requirements.lock."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SCRIPT = ROOT / "deploy/image/requirements.py"
REQUIREMENTS = runpy.run_path(str(SCRIPT))["requirements"]
IMAGES = re.findall(r"requirements\.py ([a-z ]+) >", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
ENTRY = re.compile(r"^(?P<pin>[^\s#].*?)(?P<hashes>(?: \\\n +--hash=sha256:[0-9a-f]{64})+)\n", re.MULTILINE)
PINS = [Requirement(found["pin"]) for found in ENTRY.finditer(LOCK)]


@pytest.mark.parametrize("extras", IMAGES)
def test_an_image_installs_all_but_the_project(extras: str) -> None:
    lines = REQUIREMENTS(PROJECT, extras.split())
    assert set(PROJECT["dependencies"]) <= set(lines)
    assert not [line for line in lines if line.startswith(PROJECT["name"])]


def test_an_extra_brings_the_extras_it_names() -> None:
    assert len(IMAGES) == 5
    project = {
        "name": "it",
        "dependencies": ["a>=1"],
        "optional-dependencies": {"one": ["it[two,three]", "b"], "two": ["it[one]", "c"], "three": ["d[e]"]},
    }
    assert REQUIREMENTS(project, ["one"]) == ["a>=1", "b", "c", "d[e]"]
    with pytest.raises(SystemExit, match="no extra 'four'; it has one, three, two"):
        REQUIREMENTS(project, ["four"])


@pytest.mark.parametrize("extra", [name for name in PROJECT["optional-dependencies"] if name != "bench"])
def test_the_lock_file_satisfies_pyproject(extra: str) -> None:
    """For every Python version of an entry; the peers of a benchmark are not locked."""
    for line in REQUIREMENTS(PROJECT, [extra]):
        wanted = Requirement(line)
        pins = [pin for pin in PINS if canonicalize_name(pin.name) == canonicalize_name(wanted.name)]
        assert pins, f"requirements.lock has no {wanted.name}: `make lock` writes it"
        for pin in pins:
            [pinned] = pin.specifier
            assert wanted.specifier.contains(pinned.version), f"{line} is locked as {pin}: `make lock`"


def test_the_lock_is_versions_with_hashes_and_names_no_host() -> None:
    assert len(PINS) > 200
    rest = ENTRY.sub("", LOCK)
    assert [line for line in rest.splitlines() if not re.fullmatch(r" *# [\w\[\](), .-]+:?", line)] == []


def test_pip_is_given_the_lock_with_what_it_installs() -> None:
    printed = printed_by("server", "otel")
    assert printed[:2] == ["--require-hashes", f"--constraint {ROOT / 'requirements.lock'}"]
    assert printed[2:] == REQUIREMENTS(PROJECT, ["server", "otel"])


def test_a_pip_that_reads_the_lock_comes_from_it() -> None:
    """An older pip is replaced; any version can read one entry."""
    [entry] = ENTRY.finditer("\n".join([*printed_by("--pip"), ""]))
    [wanted] = [line for line in PROJECT["optional-dependencies"]["lock"] if line.startswith("pip")]
    [pinned] = Requirement(entry["pin"]).specifier
    assert Requirement(wanted).specifier.contains(pinned.version)


def printed_by(*arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], cwd=ROOT, capture_output=True, check=True)
    return done.stdout.decode().splitlines()
