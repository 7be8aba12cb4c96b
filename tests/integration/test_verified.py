"""`kb verify` on images: the engine under test, and an independent implementation.

The independent engine is in `foreign_engine/`: another program with another store, based only on the
published document. The whole tier runs on it like this:

    docker build -f tests/integration/foreign_engine/Dockerfile -t foreign-engine .
    KB_ENGINE_IMAGE=foreign-engine python -m pytest tests/integration
"""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.integration import docker_engine
from tests.integration.conftest import Images, Report
from tests.integration.containers import ENGINE_KEY, Engine, Lab, Server
from tests.support.patience import COMMAND_SECONDS, SUITE_SECONDS
from tests.support.scope import ALL, ALL_VARIABLE
from tests.support.stack import ROOT

pytestmark = pytest.mark.process

FOREIGN = ROOT / "tests" / "integration" / "foreign_engine"


@pytest.fixture(scope="session")
def foreign_image(docker: None) -> str:
    return docker_engine.build("", "kb-foreign-engine:test", file=FOREIGN / "Dockerfile")


in_a_whole_run = pytest.mark.skipif(
    not ALL, reason=f"{ALL_VARIABLE}: the other engine is a matter of releases"
)


def verify(engine: Engine) -> str:
    """Run `kb verify --quick` and return its verdict.

    Raises:
        DockerFailed: a promise is broken; the message is the command's output.
    """
    command = (sys.executable, "-m", "kb_cli.main", "verify", engine.url, "--json", "--quick")
    told = json.loads(docker_engine.run(*command, seconds=SUITE_SECONDS, KB_API_KEY=ENGINE_KEY))
    assert told["passed"] is True
    return str(told["verdict"])


def test_the_engine_image_keeps_its_promises(images: Images, workshop: Lab, report: Report) -> None:
    engine = Engine(images.engine, workshop.network())
    workshop.ready(engine)
    counted = verify(engine)
    report.tell(f"kb verify on {images.engine}: {counted}")
    assert " 0 broken" in counted


@in_a_whole_run
def test_an_engine_that_is_not_ours_keeps_them_too(foreign_image: str, workshop: Lab, report: Report) -> None:
    """The contract is verified, not one program."""
    engine = Engine(foreign_image, workshop.network())
    workshop.ready(engine)
    counted = verify(engine)
    report.tell(f"kb verify on {foreign_image}: {counted}")
    assert " 0 broken" in counted


@in_a_whole_run
def test_agents_take_their_first_steps_over_an_engine_that_is_not_ours(
    images: Images, foreign_image: str, workshop: Lab
) -> None:
    network = workshop.network()
    engine, server = Engine(foreign_image, network), Server(images.server, network)
    workshop.ready(engine, server)
    steps = str(ROOT / "examples" / "first_steps.py")
    told = docker_engine.run(sys.executable, steps, "--url", server.mcp_url, seconds=COMMAND_SECONDS)
    assert told.splitlines()[-1] == "All steps done."
    status = server.caller().ok("kb_status")
    assert status["model"]["name"] == "hashed-trigrams"


@in_a_whole_run
def test_the_other_engine_knows_nothing_of_kb(foreign_image: str, workshop: Lab) -> None:
    engine = Engine(foreign_image, workshop.network())
    workshop.started(engine)
    names = json.loads(
        engine.run(
            "python",
            "-c",
            "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))",
        )
    )
    assert "kb-for-agents" not in names
    for path in FOREIGN.glob("*.py"):
        assert not re.search(r"^\s*(from|import) kb_", path.read_text("utf-8"), re.MULTILINE)
