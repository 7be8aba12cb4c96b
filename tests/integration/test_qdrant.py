"""The tests of the search index, on a real Qdrant in a container.

`KB_QDRANT_IMAGE` names another image than the one in `compose.yml`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
import yaml
from testcontainers.core.container import DockerContainer

from kb_load.processes import clean_environment, free_port
from tests.integration import docker_engine
from tests.integration.conftest import Report
from tests.support.eventually import eventually
from tests.support.patience import ANSWER_SECONDS, SUITE_SECONDS
from tests.support.stack import ROOT

pytestmark = pytest.mark.process

TESTS = (
    *(
        "tests/unit/engine/index",
        "tests/contract/test_suite.py",
        "tests/parity",
        "tests/faults/test_engine_kill.py",
    ),
    *("-k", "real or qdrant or Qdrant"),
)
"""The tests as listed in docs/limits.md."""


def image() -> str:
    services = yaml.safe_load((ROOT / "compose.yml").read_text("utf-8"))["services"]
    return os.environ.get("KB_QDRANT_IMAGE") or str(services["qdrant"]["image"])


@pytest.fixture
def url(docker: None) -> Iterator[str]:
    """A Qdrant without persistent storage."""
    if why := docker_engine.why_no_image(image()):
        pytest.skip(f"no image {image()} (KB_QDRANT_IMAGE names another): {why}")
    port = free_port()
    container = DockerContainer(image()).with_kwargs(
        labels=docker_engine.labels(), ports={"6333/tcp": ("127.0.0.1", port)}
    )
    address = f"http://127.0.0.1:{port}"
    with container:
        eventually(lambda: _is_ready(address), what="the start of Qdrant")
        yield address


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", timeout=ANSWER_SECONDS).is_success
    except httpx.TransportError:
        return False


def test_the_index_does_on_a_real_server_what_it_does_on_its_core(url: str, report: Report) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", *TESTS],
        cwd=ROOT,
        env=clean_environment(QDRANT_URL=url),
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    report.tell(f"{image()}: {done.stdout.strip().splitlines()[-1]}")
