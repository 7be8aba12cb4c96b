"""Images and containers for the tests of the shipped files.

    python -m pytest tests/integration -n 2 --dist loadfile

runs them if a Docker engine is available. Without one they are skipped with the reason, or fail if
`KB_REQUIRE_DOCKER=1`. A run of the whole test suite skips them. The images are built here, or taken from
`KB_ENGINE_IMAGE`, `KB_SERVER_IMAGE` and `KB_SIMULATOR_IMAGE`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

os.environ["TESTCONTAINERS_RYUK_DISABLED"] = (
    "true"  # read at import; leftovers are removed by this tier itself
)

from tests.integration import docker_engine
from tests.integration.containers import Engine, Lab, Server, lab

FOLDER = "tests/integration"
REPORT = pytest.StashKey["Report"]()


@dataclass
class Report:
    """Noteworthy results of a run, printed line by line at its end."""

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
        """True if the engine is the one of this repository, not another implementation of the contract."""
        found = docker_engine.inspect("image", self.engine)["Config"].get("Labels") or {}
        return found.get("org.opencontainers.image.title") == "kb engine"


def pytest_configure(config: pytest.Config) -> None:
    """Create the report."""
    config.stash[REPORT] = Report()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass the report to the controlling process, if tests run in several."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[FOLDER] = session.config.stash[REPORT].lines


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    report = node.config.stash[REPORT]
    for line in getattr(node, "workeroutput", {}).get(FOLDER, []):
        if line not in report.lines:  # reported by one of several workers for the same image
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
    """Skip tests that need Docker if it is absent; here, so that pytest reports them in one line."""
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
    """The engine's image if it is kb's own, for tests of guarantees that only kb's engine gives."""
    if not images.engine_is_ours:
        pytest.skip(f"{images.engine} is another engine than kb's own")
    return images.engine


@pytest.fixture
def workshop(docker: None) -> Iterator[Lab]:
    with lab() as made:
        yield made


@dataclass(frozen=True)
class RunningStack:
    """A running engine and server."""

    engine: Engine
    server: Server


@pytest.fixture(scope="module")
def stack(images: Images) -> Iterator[RunningStack]:
    """Engine and server as shipped, for tests that leave them running."""
    with lab() as made:
        network = made.network()
        engine = Engine(images.engine, network, volume=made.volume())
        server = Server(images.server, network)
        made.ready(engine, server)
        yield RunningStack(engine, server)


def _megabytes(image: str) -> str:
    """The size of an image, and the size of the layers copied onto its base."""
    size = int(docker_engine.inspect("image", image)["Size"])
    layers = docker_engine.docker("history", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", image)
    added = sum(int(line.split()[0]) for line in layers.splitlines() if "COPY" in line)
    told = f"{size / 1e6:.0f} MB"
    return f"{told}, of which {added / 1e6:.0f} MB are dependencies and kb" if added > 1e6 else told
