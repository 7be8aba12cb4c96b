"""The compose files, run by the available compose command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from kb_load.processes import free_port
from tests.integration import docker_engine
from tests.integration.conftest import Images
from tests.support.eventually import eventually
from tests.support.mcp_http import Caller
from tests.support.patience import ANSWER_SECONDS, COMMAND_SECONDS, CONTAINER_SECONDS, JOB_SECONDS
from tests.support.stack import ROOT

pytestmark = pytest.mark.process

FILES = ("compose.yml", "compose.test.yml", "deploy/ragler/compose.yml", "deploy/replicas/compose.yml")


@dataclass
class Project:
    """One project of the compose command, with its own name, removed with its volumes."""

    command: list[str]
    file: str
    environment: dict[str, str]
    name: str = field(default_factory=lambda: f"kb-test-{os.getpid()}")

    def run(self, *arguments: str, seconds: float = CONTAINER_SECONDS) -> str:
        command = [*self.command, "-p", self.name, "-f", self.file, *arguments]
        return docker_engine.run(*command, seconds=seconds, **self.environment)

    def up(self) -> None:
        """Start the services of `compose.yml` and wait until the server answers."""
        self.run("up", "--detach", "--no-build", seconds=CONTAINER_SECONDS)
        eventually(self._answers, bool, what="an answer of the server")

    def _answers(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self.environment['KB_MCP_PORT']}/readyz"
            return httpx.get(url, timeout=ANSWER_SECONDS).is_success
        except httpx.TransportError:
            return False

    def down(self) -> None:
        self.run("down", "--volumes", "--remove-orphans", "--timeout", "20")


@pytest.fixture(scope="session")
def compose(docker: None) -> list[str]:
    """The compose command; without one the test is skipped, or fails if Docker is required."""
    command = docker_engine.compose_command()
    if not command and os.environ.get("KB_REQUIRE_DOCKER") == "1":
        pytest.fail("KB_REQUIRE_DOCKER=1, and neither `docker compose` nor `docker-compose` answers")
    if not command:
        pytest.skip("neither `docker compose` nor `docker-compose` answers")
    return command


@pytest.mark.requirement("R76")
@pytest.mark.parametrize("file", FILES)
def test_the_compose_command_understands_the_file(compose: list[str], file: str) -> None:
    """Without errors on stderr, and with no variable set."""
    Project(compose, file, {}).run("config", "--quiet")


def test_the_compose_command_understands_the_proxy_over_it(compose: list[str]) -> None:
    over = ("-f", "deploy/proxy/compose.yml", "--project-directory", ".")
    services = Project(compose, "compose.yml", {}).run(*over, "config", "--services").split()
    assert {"engine", "server", "proxy"} <= {*services}


@pytest.fixture
def shipped(compose: list[str], images: Images) -> Iterator[Project]:
    """`compose.yml` running with the images under test, both keys and a free port."""
    environment = {
        "KB_ENGINE_IMAGE": images.engine,
        "KB_SERVER_IMAGE": images.server,
        "KB_API_KEY": "between-them",
        "KB_MCP_API_KEY": "of-the-agents",
        "KB_MCP_PORT": str(free_port()),
    }
    project = Project(compose, "compose.yml", environment)
    try:
        project.up()
        yield project
    finally:
        project.down()


@pytest.mark.requirement("K5", "K8", "E31")
def test_an_agent_takes_its_first_steps_after_up(shipped: Project) -> None:
    """The unchanged example, with the server's key."""
    told = docker_engine.run(
        sys.executable,
        str(ROOT / "examples" / "first_steps.py"),
        "--url",
        f"http://127.0.0.1:{shipped.environment['KB_MCP_PORT']}/mcp",
        "--api-key",
        shipped.environment["KB_MCP_API_KEY"],
        seconds=COMMAND_SECONDS,
    )
    assert told.splitlines()[-1] == "All steps done."


def test_data_stays_over_down_and_up(shipped: Project) -> None:
    added = asked(shipped, "kb_addnote", text="Data stays", collection="memory", wait_seconds=JOB_SECONDS)
    shipped.run("down", "--timeout", "20")
    shipped.up()
    found = asked(shipped, "kb_search", query="stays", collection="memory")["results"]
    assert [result["document_id"] for result in found] == [added["document_id"]]


def asked(project: Project, tool: str, **arguments: Any) -> dict[str, Any]:
    url = f"http://127.0.0.1:{project.environment['KB_MCP_PORT']}/mcp"
    caller = Caller(url, project.environment["KB_MCP_API_KEY"])
    try:
        return caller.ok(tool, **arguments)
    finally:
        caller.http.close()


@pytest.mark.requirement("K2", "K8")
def test_the_runner_beside_the_stack_finds_everything_well(
    compose: list[str], images: Images, simulator_image: str
) -> None:
    """`compose.test.yml` as its head describes; its status is the runner's."""
    environment = {
        "KB_ENGINE_IMAGE": images.engine,
        "KB_SERVER_IMAGE": images.server,
        "KB_SIMULATOR_IMAGE": simulator_image,
        "KB_RUNNER_IMAGE": docker_engine.build("runner", "kb-runner:test"),
    }
    project = Project(compose, "compose.test.yml", environment)
    try:
        told = project.run("up", "--no-build", "--exit-code-from", "tests", seconds=CONTAINER_SECONDS)
        assert " passed" in told
        assert "skipped" not in told
    finally:
        project.down()
