"""The fixtures work in any project, and a test that proves nothing fails."""

from __future__ import annotations

import httpcore  # noqa: F401 - an inner run of pytest unloads the modules that it was the first to import
import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.process

ADD = """
import httpx, pytest

def add(engine, text="granite"):
    url = f"{engine.url}/api/v1/jobs"
    return httpx.post(url, json={"text": text}, headers=dict(engine.headers), verify=False, timeout=None)
"""


def run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_other=ADD + source)
    plugins = ("-p", "kb_simulator.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:asyncio")
    return pytester.runpytest_inprocess(*plugins, *options)


def test_each_test_has_a_fresh_engine_chosen_by_its_key(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.parametrize("run", [1, 2])
def test_it(engine, run):
    assert add(engine).status_code == 202
    assert engine.control.state().status.documents.total == 1

def test_a_wrong_key_goes_elsewhere(engine, simulator):
    other = {"Authorization": "Bearer other"}
    httpx.get(f"{simulator.url}/api/v1/status", headers=other, verify=False, timeout=None)
    assert engine.control.overview().namespace.requests == 0

def test_nothing_is_left_of_the_others(engine):
    assert len(engine.control.overview().namespaces) == 2
""",
    )
    result.assert_outcomes(passed=4)


def test_clock_faults_and_journal_are_those_of_the_engine(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_it(engine, clock, faults, journal):
    clock.set_mode("manual")
    clock.advance(3)
    faults.arm("not_ready", operation="createJob", nth=1)
    assert [add(engine).status_code for _ in range(2)] == [503, 202]
    journal.expect(operation="createJob", exactly=2)
    assert clock.elapsed() == 3
""",
    )
    result.assert_outcomes(passed=1)


def test_a_fault_that_never_fired_fails_the_test(pytester: pytest.Pytester) -> None:
    """The test would otherwise prove nothing."""
    result = run(
        pytester,
        """
def test_it(engine, faults):
    faults.arm("lost_ack", operation="search")
    add(engine)
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*armed faults never fired:*", "*lost_ack-1 (POST /api/v1/search) never*"])


def test_a_fault_may_be_optional(pytester: pytest.Pytester) -> None:
    source = "\ndef test_it(engine, faults):\n    faults.arm('hang', optional=True)\n"
    run(pytester, source).assert_outcomes(passed=1)


def test_a_failure_tells_the_seed_the_command_and_the_last_requests(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_it(engine):
    add(engine)
    httpx.get(f"{engine.url}/api/v1/serch", headers=dict(engine.headers), verify=False, timeout=None)
    assert False
""",
        "--sim-seed",
        "99",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "kb simulator: seed 99",
            "seed 99; repeat with: python -m pytest -p kb_simulator.pytest_plugin --sim-seed 99 *::test_it",
            "no such operation or field: GET /api/v1/serch (route_not_found)",
            "#1 POST /api/v1/jobs -> 202",
            "#2 GET /api/v1/serch -> 404 route_not_found",
        ]
    )


def test_the_same_seed_gives_the_same_ids(pytester: pytest.Pytester) -> None:
    source = """
import pathlib
def test_it(engine):
    with pathlib.Path("ids").open("a") as ids:
        ids.write(add(engine).json()["id"] + "\\n")
def test_another(engine):
    test_it(engine)
"""
    for seed in ("1", "1", "2"):
        run(pytester, source, "--sim-seed", seed).assert_outcomes(passed=2)
    ids = pytester.path.joinpath("ids").read_text().split()
    assert len(set(ids[:4])) == 1
    assert len(set(ids)) == 2


def test_a_random_seed_is_named(pytester: pytest.Pytester) -> None:
    result = run(pytester, "\ndef test_it(engine):\n    assert False\n", "--sim-seed", "random")
    result.stdout.re_match_lines([r"kb simulator: seed \d+", r"seed \d+; repeat with: .* --sim-seed \d+ .*"])


def test_a_seed_that_is_none_is_refused(pytester: pytest.Pytester) -> None:
    result = run(pytester, "", "--sim-seed", "seven")
    assert "--sim-seed takes an integer or `random`, not 'seven'" in result.stderr.str() + result.stdout.str()
