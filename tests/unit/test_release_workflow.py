"""The release workflow of the code host, checked as text because it cannot run here."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from kb_cli import VERSION
from kb_contracts.api.operations import API_VERSION
from kb_server.services import SERVER_VERSION
from tests.support.stack import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE))
MADE = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(yaml.safe_load(request.param.read_text("utf-8")))


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


def test_actions_have_a_version_or_a_hash(workflow: dict[str, Any]) -> None:
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert used
    assert [name for name in used if not re.fullmatch(r"[\w-]+/[\w/-]+@(v\d+|[0-9a-f]{40})", name)] == []


def test_a_workflow_may_read_and_each_job_says_what_more(workflow: dict[str, Any]) -> None:
    """Only the release job may write to the repository, and no job has a secret."""
    assert workflow["permissions"] == {"contents": "read"}
    writing = [
        name
        for name, job in workflow["jobs"].items()
        if job.get("permissions", {}).get("contents") == "write"
    ]
    assert writing in ([], ["release"])
    assert "secrets." not in yaml.safe_dump(workflow)


def test_the_workflow_uses_existing_make_targets_and_image_stages(workflow: dict[str, Any]) -> None:
    for step in steps(workflow):
        if found := re.match(r"make ([a-z -]+)$", step.get("run", "")):
            assert set(found[1].split()) <= MADE
    for job in workflow["jobs"].values():
        assert set(job.get("strategy", {}).get("matrix", {}).get("target", [])) <= TARGETS


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert f'org.opencontainers.image.version="{project}"' in (ROOT / "Dockerfile").read_text("utf-8")
    assert {VERSION, API_VERSION, f"v{SERVER_VERSION}"} == {f"v{project}"}
    assert json.loads((ROOT / ".claude-plugin/plugin.json").read_text("utf-8"))["version"] == project
