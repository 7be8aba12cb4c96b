"""What is tested on Qdrant's core, on a real Qdrant in a container.

`KB_QDRANT_IMAGE` names another image than the one of `compose.yml`. On a server that runs already, the tests
themselves run where `QDRANT_URL` names it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
import yaml
from testcontainers.core.container import DockerContainer

from kb_load.processes import clean_environment, free_port
from tests.integration import docker_engine
from tests.integration.conftest import Report
from tests.integration.docker_engine import DockerFailed, labels
from tests.support.eventually import eventually
from tests.support.stack import ROOT

SECONDS = 1_800
ON_QDRANT = (
    "tests/unit/engine/index",
    "tests/contract/test_suite.py",
    "tests/parity",
    "tests/faults/test_engine_kill.py",
)


def image() -> str:
    services = yaml.safe_load((ROOT / "compose.yml").read_text("utf-8"))["services"]
    return os.environ.get("KB_QDRANT_IMAGE") or str(services["qdrant"]["image"])


@pytest.fixture
def url(docker: None) -> Iterator[str]:
    """A Qdrant that keeps nothing."""
    _have_image()
    port = free_port()
    container = DockerContainer(image()).with_kwargs(labels=labels(), ports={"6333/tcp": ("127.0.0.1", port)})
    address = f"http://127.0.0.1:{port}"
    with container:
        eventually(lambda: _is_ready(address), seconds=60, what="the start of Qdrant")
        yield address


def _have_image() -> None:
    with suppress(DockerFailed):
        docker_engine.inspect("image", image())
        return
    try:
        docker_engine.docker("pull", image(), seconds=SECONDS)
    except DockerFailed as error:
        if os.environ.get("KB_REQUIRE_DOCKER") == "1":
            raise
        pytest.skip(f"the image {image()} cannot be had: {error}")


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz").is_success
    except httpx.TransportError:
        return False


@pytest.mark.timeout(SECONDS)
def test_the_index_does_on_a_real_server_what_it_does_on_its_core(url: str, report: Report) -> None:
    command = ["-m", "pytest", "-q", "-n0", *ON_QDRANT, "-k", "real or qdrant"]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=clean_environment(QDRANT_URL=url),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    report.tell(f"{image()}: {done.stdout.strip().splitlines()[-1]}")
