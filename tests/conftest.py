"""Profiles of Hypothesis for all tests, time limits and order. `tests/README.md` describes the rest."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.costs import Costs
from tests.support.patience import TEST_SECONDS
from tests.support.scope import ALL

# No deadlines, because a machine may be busy. In CI the examples are the same on every run, so that no
# failure is random; a failure prints how to repeat it.
in_ci = bool(os.environ.get("CI"))
settings.register_profile(
    "kb", deadline=None, max_examples=50 if ALL else 25, derandomize=in_ci, print_blob=in_ci
)
settings.load_profile("kb")

LONGEST = (
    "contract/test_access.py",
    "contract/test_suite.py",
    "integration/test_verified.py",
    "store/test_migration_kills.py",
)
"""Files of tests that take a core more than a minute."""


GC_OBJECTS = 10_000
"""Number of new objects that starts a garbage collection; Python's 700 cost 6 % more processor time."""

PROCESS_MARK = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.process\b", re.MULTILINE)
"""The mark of a whole module."""
MARK = "pytest.mark.process"
TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Report costs, and bound each test unless the command line bounds it."""
    config.pluginmanager.register(Costs())
    if config.option.timeout is None:
        config.option.timeout = TEST_SECONDS


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, and keep it from visiting the collected tests later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(GC_OBJECTS)
        gc.enable()


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _can_have_process_tests(path: Path) -> bool:
    """True if the file, or a `conftest.py` of its fixtures, names the mark."""
    folders = [folder for folder in path.parents if TESTS in folder.parents]
    return any(MARK in _text(each) for each in (path, *(folder / "conftest.py" for folder in folders)))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of files, and of `conftest.py` in folders, without tests of the mark in question."""
    if config.option.markexpr == "not process":
        files = [collection_path] if collection_path.suffix == ".py" else collection_path.rglob("test_*.py")
        return all(PROCESS_MARK.search(_text(file)) for file in files) or None
    if collection_path.suffix != ".py":
        return None
    return (config.option.markexpr == "process" and not _can_have_process_tests(collection_path)) or None


@pytest.fixture(scope="session", autouse=True)
def _small_reserve() -> Iterator[None]:
    from kb_engine.store.sqlite import reserve  # only in processes that run tests
    from tests.support.new_base import RESERVE_DIVISOR

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reserve, "RESERVE_BYTES", reserve.RESERVE_BYTES // RESERVE_DIVISOR)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("process") and not _can_have_process_tests(item.path):
        raise pytest.UsageError(f"{item.nodeid} has the mark `process`, which its file does not name")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long tests first, so that no core still works on one when the rest are done."""
    items.sort(key=lambda item: not item.nodeid.partition("::")[0].endswith(LONGEST))
