"""The fixtures for agents work in any project, without warnings."""

from __future__ import annotations

import re
from pathlib import Path

import httpcore  # noqa: F401 - an inner run of pytest unloads the modules that it was the first to import
import pytest

pytestmark = pytest.mark.process

pytest_plugins = ["pytester"]

DOCUMENT = Path(__file__).parents[3] / "docs" / "faults.md"


def run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_other=source)
    plugins = "-p kb_server.testing.pytest_plugin -p no:cacheprovider -p no:asyncio -W error"
    return pytester.runpytest_subprocess(*plugins.split(), *options)


def test_a_missing_extra_is_named_in_one_line(pytester: pytest.Pytester) -> None:
    """The plugin is loaded by the command line, and by conftest.py."""
    pytester.makepyfile(without_mcp="import sys\nsys.modules['mcp'] = None")
    pytester.makepyfile(test_other="def test_it(): pass")
    plugins = ("-p", "without_mcp", "-p", "no:cacheprovider")
    results = [pytester.runpytest_subprocess(*plugins, "-p", "kb_server.testing.pytest_plugin")]
    pytester.makeconftest("pytest_plugins = ['kb_server.testing.pytest_plugin']")
    results.append(pytester.runpytest_subprocess(*plugins))
    for result in results:
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        (line,) = [line for line in result.errlines if line.strip()]
        assert line.startswith("ERROR: kb_server.testing needs the package mcp, which is not installed")
        assert "extras `server` and `sim`" in line


def test_server_and_client_stand_in_front_of_the_tests_own_engine(pytester: pytest.Pytester) -> None:
    """The examples of the documentation pass; a failure names the plugin in use, the seed and the journal."""
    examples = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    pytester.makepyfile(test_examples="\n".join(examples))
    result = run(
        pytester,
        """
import re
from pathlib import Path

import pytest

@pytest.mark.parametrize("mcp_mode", ["auto", "legacy", "2026-07-28"])
def test_it(mcp_client, mcp_server, engine, faults, journal, clock):
    assert "kb_addnote" in {tool.name for tool in mcp_client.tools()}
    assert mcp_client.ok("kb_addnote", text="granite", wait_seconds=5)["document_id"] == 1
    assert engine.control.state().status.documents.total == 1
    faults.arm("queue_full", operation="search")
    assert mcp_client.refused("kb_search", query="granite")["error"] == "engine_busy"
    journal.expect(operation="search", exactly=4)
    assert clock.elapsed() == mcp_server.clock.elapsed() == 3.0

class TestOfAProjectWithSettingsOfItsOwn:
    @pytest.fixture
    def mcp_settings(self):
        return {"toolsets": ["kb", "kb-extra"], "api_key": "secret"}

    def test_it(self, mcp_client):
        assert "kb_move" in {tool.name for tool in mcp_client.tools()}

@pytest.mark.parametrize("mcp_settings", [{"request_timeout_ms": 2000}])
def test_a_hang_is_given_up(mcp_client, faults):
    faults.arm("hang", operation="getStatus", nth=1)
    assert mcp_client.refused("kb_status")["error"] == "engine_timeout"
    assert mcp_client.ok("kb_status")

def test_a_failure(mcp_client):
    mcp_client.refused("kb_status")
""",
        "--sim-seed",
        "99",
    )
    result.assert_outcomes(passed=5 + 4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*AssertionError: kb_status did not fail: *",
            "seed 99; repeat with: python -m pytest -p kb_server.testing.* --sim-seed 99 *::test_a_failure",
            "#1 GET /api/v1/status -> 200",
        ]
    )
