"""The protocol's own suite, inspector and client against this project's servers; they need Node.

Off unless `KB_CONFORMANCE=1`: the first run fetches Node 22 and the packages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

if os.environ.get("KB_CONFORMANCE") != "1":
    pytest.skip("set KB_CONFORMANCE=1 to run MCP's own tools, which need npm", allow_module_level=True)

from tests.conformance import node, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def servers() -> Iterator[run.Servers]:
    """Example and product, running."""
    node.install()
    with run.servers() as running:
        yield running


@pytest.mark.parametrize("version", run.VERSIONS)
@pytest.mark.parametrize("target", ["example", "product"])
def test_the_suite_finds_what_is_expected_and_nothing_else(
    servers: run.Servers, target: str, version: str, tmp_path: Path
) -> None:
    """Every failed check is listed with a reason, and every listed one fails."""
    verdict = run.run_suite(target, version, servers.url(target), tmp_path)
    assert verdict.scenarios > 0
    assert dict(verdict.unexpected) == {}
    assert verdict.stale == []


@pytest.mark.parametrize("era", run.ERAS)
def test_the_inspector_finds_the_schemas_of_every_toolset_portable(servers: run.Servers, era: str) -> None:
    """Run with --strict on each endpoint."""
    inspections = [run.inspect(servers, path, era) for path in run.toolset_paths(servers)]
    assert len(inspections) > 1
    assert {each.path: each.errors for each in inspections if each.errors} == {}


@pytest.mark.parametrize("mode", run.MODES)
def test_the_typescript_client_makes_the_round_trip(servers: run.Servers, mode: str) -> None:
    """Connect, list, call, be refused, follow progress: over HTTP and stdio, in each era."""
    arrivals = [run.travel(trip, mode) for trip in run.trips(servers)]
    assert {arrival.name: arrival.wrong for arrival in arrivals if arrival.wrong} == {}
