"""A real engine for the commands: in this process, on a thread and a port of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import engines

KEY = "engine-secret"


@dataclass(frozen=True)
class RunningEngine:
    """Where it answers, and its key."""

    url: str
    key: str = KEY


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """An engine with an empty base and the quick embedder."""
    with engines.engine(tmp_path_factory.mktemp("home"), api_key=KEY) as url:
        yield RunningEngine(url)


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder, and none of our settings but those that the test gives."""
    monkeypatch.chdir(tmp_path)
    for name in ("KB_CONFIG", "KB_ENGINE_URL", "KB_API_KEY", "KB_HOME", "LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
