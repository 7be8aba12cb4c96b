"""`kb verify` on the image of the engine, or on that of another engine (`KB_ENGINE_IMAGE`)."""

from __future__ import annotations

import json
import sys

import pytest

from tests.integration import docker_engine
from tests.integration.conftest import Images, Report
from tests.integration.containers import ENGINE_KEY, Engine, Lab
from tests.support.patience import SUITE_SECONDS

pytestmark = pytest.mark.process


def test_the_engine_image_keeps_its_promises(images: Images, workshop: Lab, report: Report) -> None:
    engine = Engine(images.engine, workshop.network())
    workshop.ready(engine)
    command = (sys.executable, "-m", "kb_cli.main", "verify", engine.url, "--json", "--quick")
    told = json.loads(docker_engine.run(*command, seconds=SUITE_SECONDS, KB_API_KEY=ENGINE_KEY))
    report.tell(f"kb verify on {images.engine}: {told['verdict']}")
    assert told["passed"] is True
    assert " 0 broken" in told["verdict"]
