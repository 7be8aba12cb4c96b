"""Images and containers for the tests of what is shipped.

    python -m pytest tests/integration -n 2 --dist loadfile

runs them where a Docker engine answers; elsewhere they are skipped with one line that says why, or fail
where `KB_REQUIRE_DOCKER=1`. A run of the whole test suite leaves them out. The images are built here, or
taken from `KB_ENGINE_IMAGE`, `KB_SERVER_IMAGE` and `KB_SIMULATOR_IMAGE`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"  # read at import; what is left over is removed here

from tests.integration import docker_engine
from tests.integration.containers import Engine, Lab, Server, lab

FOLDER = "tests/integration"
REPORT = pytest.StashKey["Report"]()


@dataclass
class Report:
    """What is worth telling of a run, line by line."""

    lines: list[str] = field(default_factory=list)

    def tell(self, line: str) -> None:
        self.lines.append(line)


@dataclass(frozen=True)
class Images:
    """Names of the images under test."""

    engine: str
    server: str

    @property
    def engine_is_ours(self) -> bool:
        """Whether the engine is the one of this repository, and not somebody's who keeps the same promise."""
        found = docker_engine.inspect("image", self.engine)["Config"].get("Labels") or {}
        return found.get("org.opencontainers.image.title") == "kb engine"


def pytest_configure(config: pytest.Config) -> None:
    """Make room for the report."""
    config.stash[REPORT] = Report()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need Docker as processes."""
    for item in items:
        if FOLDER in item.nodeid and "docker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.process)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the report to the process that prints it, where tests run in several."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[FOLDER] = session.config.stash[REPORT].lines


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    report = node.config.stash[REPORT]
    for line in getattr(node, "workeroutput", {}).get(FOLDER, []):
        if line not in report.lines:  # of an image that several have looked at
            report.tell(line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash[REPORT].lines
    if lines:
        terminalreporter.section("the stack in containers")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Report:
    return request.config.stash[REPORT]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs Docker where there is none; from here, so that all are told of in one line."""
    if "docker" not in getattr(item, "fixturenames", ()):
        return
    required = os.environ.get("KB_REQUIRE_DOCKER") == "1"
    asked = any(FOLDER in str(argument) for argument in item.config.args)
    if not (asked or required):
        pytest.skip(f"run `python -m pytest {FOLDER}` for the tests on real images")
    absent = _why_absent()
    if absent and required:
        pytest.exit(f"KB_REQUIRE_DOCKER=1, and no Docker engine: {absent}", returncode=1)
    if absent:
        pytest.skip(f"no Docker engine: {absent}")


@cache
def _why_absent() -> str:
    return docker_engine.why_absent()


@pytest.fixture(scope="session")
def docker() -> Iterator[None]:
    docker_engine.remove_orphans()
    yield
    docker_engine.remove_own()


def _image(variable: str, target: str) -> str:
    return os.environ.get(variable) or docker_engine.build(target, f"kb-{target}:test")


@pytest.fixture(scope="session")
def images(docker: None, report: Report) -> Images:
    made = Images(_image("KB_ENGINE_IMAGE", "engine"), _image("KB_SERVER_IMAGE", "server"))
    for name in (made.engine, made.server):
        report.tell(f"image {name}: {_megabytes(name)}")
    return made


@pytest.fixture(scope="session")
def simulator_image(docker: None, report: Report) -> str:
    name = _image("KB_SIMULATOR_IMAGE", "simulator")
    report.tell(f"image {name}: {_megabytes(name)}")
    return name


@pytest.fixture(scope="session")
def our_engine(images: Images) -> str:
    """The engine's image, where it is ours: for tests of what only ours promises."""
    if not images.engine_is_ours:
        pytest.skip(f"{images.engine} is another engine than kb's own")
    return images.engine


@pytest.fixture
def workshop(docker: None) -> Iterator[Lab]:
    with lab() as made:
        yield made


@dataclass(frozen=True)
class RunningStack:
    """Engine and server that run."""

    engine: Engine
    server: Server


@pytest.fixture(scope="module")
def stack(images: Images) -> Iterator[RunningStack]:
    """Engine and server as they are shipped, for tests that leave them running."""
    with lab() as made:
        network = made.network()
        engine = Engine(images.engine, network, volume=made.volume())
        server = Server(images.server, network)
        made.ready(engine, server)
        yield RunningStack(engine, server)


def _megabytes(image: str) -> str:
    """The size of an image, and how much of it is copied onto the base."""
    size = int(docker_engine.inspect("image", image)["Size"])
    layers = docker_engine.docker("history", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", image)
    added = sum(int(line.split()[0]) for line in layers.splitlines() if "COPY" in line)
    told = f"{size / 1e6:.0f} MB"
    return f"{told}, of which {added / 1e6:.0f} MB are dependencies and kb" if added > 1e6 else told
