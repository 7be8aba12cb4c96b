"""What the images install before kb itself: everything that kb asks for there, and not kb."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = runpy.run_path(str(ROOT / "deploy/image/requirements.py"))["requirements"]
IMAGES = re.findall(r"requirements\.py ([a-z ]+) >", (ROOT / "Dockerfile").read_text(encoding="utf-8"))


@pytest.mark.parametrize("extras", IMAGES)
def test_an_image_installs_all_but_the_project(extras: str) -> None:
    lines = REQUIREMENTS(PROJECT, extras.split())
    assert set(PROJECT["dependencies"]) <= set(lines)
    assert not [line for line in lines if line.startswith(PROJECT["name"])]


def test_an_extra_brings_the_extras_it_names() -> None:
    assert len(IMAGES) == 4
    project = {
        "name": "it",
        "dependencies": ["a>=1"],
        "optional-dependencies": {"one": ["it[two,three]", "b"], "two": ["it[one]", "c"], "three": ["d[e]"]},
    }
    assert REQUIREMENTS(project, ["one"]) == ["a>=1", "b", "c", "d[e]"]
    with pytest.raises(SystemExit, match="no extra 'four'; it has one, three, two"):
        REQUIREMENTS(project, ["four"])
