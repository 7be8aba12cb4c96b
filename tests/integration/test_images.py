"""The images: content, user and shutdown; and that a killed run leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from tests.integration import docker_engine
from tests.integration.conftest import Images, RunningStack
from tests.integration.containers import USER, Container, Engine, Lab, Server
from tests.integration.docker_engine import LABEL, OWNER_LABEL, docker, owner, remove_orphans
from tests.support.eventually import eventually
from tests.support.patience import ANSWER_SECONDS
from tests.support.stack import ROOT

pytestmark = pytest.mark.process

BUILD_TOOLS = ("gcc", "cc", "make", "git", "pip", "hatchling", "curl")
WRITABLE = {"/data", "/tmp", "/dev/shm", "/dev/mqueue"}


@pytest.fixture(params=["engine", "server"])
def part(request: pytest.FixtureRequest, stack: RunningStack, images: Images) -> Container:
    """Each part of the running stack; a foreign engine is skipped."""
    if request.param == "engine" and not images.engine_is_ours:
        pytest.skip(f"{images.engine} is another engine than kb's own")
    chosen: Container = getattr(stack, request.param)
    return chosen


def test_it_runs_as_a_fixed_user_without_rights(part: Container) -> None:
    """Independent of the host's users, so that the owner of a volume can be set in advance."""
    assert part.run("id", "-u") == str(USER)
    status = part.run("cat", "/proc/1/status")
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status


def test_only_data_and_tmp_are_writable(part: Container) -> None:
    """The root file system is read-only, and the program still runs."""
    assert "Read-only file system" in part.fails("touch", "/opt/kb/new")
    mounts = [line.split() for line in part.run("cat", "/proc/mounts").splitlines()]
    writable = {
        mount[1]
        for mount in mounts
        if "rw" in mount[3].split(",") and not mount[1].startswith(("/proc", "/sys"))
    }
    assert {"/data", "/tmp"} <= writable
    assert {path for path in writable if not path.startswith(("/dev", "/etc"))} <= WRITABLE


@pytest.mark.parametrize("tool", BUILD_TOOLS)
def test_no_build_tool_is_in_it(part: Container, tool: str) -> None:
    part.fails("sh", "-c", f"command -v {tool}")
    part.fails("python", "-c", f"import {tool}")


@pytest.mark.parametrize("module", ["numpy", "onnxruntime", "pypdfium2", "apsw", "pytest", "faker"])
def test_the_server_carries_nothing_of_the_engine(stack: RunningStack, module: str) -> None:
    """It needs an engine over HTTP; the engine's libraries are not in its image."""
    assert "ModuleNotFoundError" in stack.server.fails("python", "-c", f"import {module}")


@pytest.mark.parametrize("module", ["mcp", "uvicorn", "starlette", "pytest", "faker"])
def test_the_engine_carries_nothing_of_the_server(our_engine: str, stack: RunningStack, module: str) -> None:
    """It answers HTTP only, without MCP; pydantic is present with the client of Qdrant."""
    assert "ModuleNotFoundError" in stack.engine.fails("python", "-c", f"import {module}")


def test_it_is_labelled_and_names_no_setting_of_a_builder(part: Container) -> None:
    """Title, version and licence under the names that registries read; no key, no package index."""
    config = docker_engine.inspect("image", docker_engine.inspect("container", part.id)["Image"])["Config"]
    labels = config["Labels"]
    assert {"title", "description", "version", "licenses"} <= {
        name.removeprefix("org.opencontainers.image.") for name in labels
    }
    assert config["User"] == f"{USER}:{USER}"
    environment = dict(entry.split("=", 1) for entry in config["Env"])
    assert environment["KB_HOME"] == "/data"
    assert not {name for name in environment if "KEY" in name or "INDEX" in name or "FIND_LINKS" in name}


def test_its_own_check_says_that_it_is_well(part: Container) -> None:
    """The check is a few lines of Python and needs no shell tools."""
    eventually(part.health, lambda health: health == "healthy", what="a healthy container")


def test_the_check_fails_where_nobody_listens(part: Container) -> None:
    check = "/usr/local/lib/kb/healthcheck.py"
    assert "refused" in part.fails("env", "PORT=9", "python", check, "PORT", "/readyz")
    port = "KB_ENGINE_PORT" if isinstance(part, Engine) else "KB_MCP_PORT,MCP_SERVER_PORT"
    assert "/nothing: 40" in part.fails("python", check, port, "/nothing")


def test_the_command_line_is_in_the_image(our_engine: str, stack: RunningStack) -> None:
    """`docker exec … kb status` shows an operator the state of the base."""
    told = json.loads(stack.engine.run("kb", "status", "--json"))
    assert told["version"] == "v3.0.0"


class Answer(threading.Thread):
    """A call in its own thread."""

    def __init__(self, server: Server, tool: str, **arguments: Any) -> None:
        super().__init__(daemon=True)
        self._call = (tool, arguments)
        self._caller = server.caller()
        self.result: dict[str, Any] = {}

    def run(self) -> None:
        tool, arguments = self._call
        self.result = self._caller.call(tool, **arguments)


def test_sigterm_lets_the_servers_calls_in_flight_end(images: Images, workshop: Lab) -> None:
    """A call that waits for the engine is answered after SIGTERM; then the process ends with status 0."""
    network = workshop.network()
    engine, server = Engine(images.engine, network), Server(images.server, network)
    workshop.ready(engine, server)
    with engine.paused():
        answer = Answer(server, "kb_status")
        answer.start()
        eventually(server.logs, lambda log: "Executing tool kb_status" in log, what="the call")
        server.terminate()
        eventually(server.logs, lambda log: "Stopping" in log, what="the beginning of its end")
    answer.join(ANSWER_SECONDS)
    assert answer.result["structuredContent"]["version"] == "v3.0.0"
    eventually(server.status, lambda status: status == "exited", what="its end")
    assert server.exit_status() == 0


def volume(made_by: str) -> str:
    return docker("volume", "create", "--label", f"{LABEL}=true", "--label", f"{OWNER_LABEL}={made_by}")


def volumes() -> set[str]:
    return set(docker("volume", "ls", "--quiet", "--filter", f"label={LABEL}").split())


def owner_that_is_gone() -> str:
    code = "from tests.integration.docker_engine import owner; print(owner())"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


def test_only_volumes_of_ended_processes_are_removed(docker: None) -> None:
    """Selected by the owner label: objects of running processes and of other machines stay."""
    made = {name: volume(name) for name in (owner_that_is_gone(), owner(), "another-machine:1:1")}
    others = list(made.values())[1:]
    try:
        remove_orphans()
        assert volumes() & set(made.values()) == set(others)
    finally:
        for left in volumes() & set(made.values()):
            remove(left)


def remove(name: str) -> None:
    docker("volume", "rm", name)
