"""Forked processes share the files of tests, and the first process reports for all of them."""

from __future__ import annotations

import pytest

from tests.support.stack import ROOT

pytestmark = pytest.mark.process

pytest_plugins = ["pytester"]

PASSES = "def test_passes(): pass"
FAILS = "def test_fails():\n    print('said')\n    assert 1 == 2"
ENDS = "import os\ndef test_ends(): os._exit(7)\ndef test_lost(): pass"
LATE = """
import pytest
@pytest.fixture(scope="session")
def late():
    yield
    raise ValueError
def test_late(late): pass
"""


@pytest.mark.parametrize(
    ("files", "options", "outcomes", "words"),
    [
        ((PASSES, FAILS, PASSES), (), {"passed": 2, "failed": 1}, "*said*"),
        ((PASSES, ENDS), (), {"passed": 1, "failed": 1}, "the process of this test ended with status 7"),
        ((PASSES, LATE), (), {"passed": 2, "errors": 1}, "*ValueError*"),
        ((FAILS, PASSES), ("-x", "--forks", "1"), {"failed": 1}, "*stopping after 1 failures*"),
        ((FAILS, FAILS, PASSES), ("-x",), None, "*stopping after 1 failures*"),
    ],
    ids=["failure", "death", "late failure", "one process", "first failure"],
)
def test_results_of_forked_processes_are_reported(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    files: tuple[str, ...],
    options: tuple[str, ...],
    outcomes: dict[str, int] | None,
    words: str,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest("from tests.support.forks import pytest_addoption, pytest_configure")
    pytester.makepyfile(**{f"test_{number}": source for number, source in enumerate(files)})
    result = pytester.runpytest_subprocess("--forks", "2", "-p", "no:cacheprovider", *options)
    if outcomes is not None:
        result.assert_outcomes(**outcomes)
    result.stdout.fnmatch_lines(words)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
