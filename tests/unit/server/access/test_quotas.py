"""Quotas: counted by name, in windows, over all workers, and across restarts."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest

from kb_contracts.access.keys import Quotas
from kb_server.access.quotas import FileMeter
from kb_server.tool import ToolError

DAY = 86_400.0
START = 20_000 * DAY


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage.json"


def let_pass(meter: FileMeter, most: int, name: str = "ci") -> int:
    """Return the number of calls allowed now."""
    for passed in range(most + 1):
        try:
            meter.count_call(name, most)
        except ToolError:
            return passed
    raise AssertionError("one more than may be")


def test_a_minute_has_so_many_calls(path: Path, clock: Clock) -> None:
    meter = FileMeter(path, now=clock)
    clock.now += 12.5
    assert let_pass(meter, 5) == 5
    with pytest.raises(ToolError) as refused:
        meter.count_call("ci", 5)
    assert refused.value.details == {"retry_after": 48}
    assert let_pass(meter, 3, "other") == 3
    clock.now += 47.5
    assert let_pass(meter, 5) == 5
    assert let_pass(FileMeter(path, now=clock), 0, "nothing") == 0


@pytest.mark.parametrize("workers", [2, 4, 7])
@pytest.mark.parametrize("most", [1, 5, 60, 1_000])
def test_workers_never_let_more_pass_together_and_one_of_them_most(
    path: Path, clock: Clock, workers: int, most: int
) -> None:
    meters = [FileMeter(path, workers, clock) for _ in range(workers)]
    for meter in meters:
        meter.count_call("ci", most) if most >= workers else None
    first = 1 if most >= workers else 0
    passed = first * workers + let_pass(meters[0], most)
    assert passed >= most * 3 // 4
    assert passed + sum(let_pass(meter, most) for meter in meters[1:]) == most


def test_a_day_has_so_many_documents_and_bytes(path: Path, clock: Clock) -> None:
    meter, quotas = FileMeter(path, now=clock), Quotas(documents_per_day=2, bytes_per_day=100)
    meter.take("ci", quotas, 1, 90)
    with pytest.raises(ToolError, match="10 are left, 11 are wanted") as refused:
        meter.take("ci", quotas, 1, 11)
    assert refused.value.code == "quota_exceeded"
    assert refused.value.details == {"retry_after": 86_400, "limit": 100, "left": 10}
    meter.take("ci", quotas, 1, 10)
    with pytest.raises(ToolError, match="documents a day"):
        meter.take("ci", quotas, 1, 0)
    meter.take("ci", Quotas(), -1, -100)
    meter.take("ci", quotas, 1, 100)
    clock.now += DAY - 1
    with pytest.raises(ToolError, match="in 1 s"):
        meter.take("ci", quotas, 1, 0)
    clock.now += 1
    meter.take("ci", quotas, 2, 100)


def test_used_quotas_survive_a_restart_in_a_private_file(path: Path, clock: Clock) -> None:
    quotas = Quotas(documents_per_day=1)
    FileMeter(path, now=clock).take("ci", quotas, 1, 0)
    with pytest.raises(ToolError):
        FileMeter(path, now=clock).take("ci", quotas, 1, 0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_idle_callers_are_removed_from_the_meter(path: Path, clock: Clock) -> None:
    meter = FileMeter(path, now=clock)
    meter.take("ci", Quotas(), 1, 10)
    meter.count_call("ci", 10)
    clock.now += DAY
    meter.take("other", Quotas(), 1, 0)
    assert list(json.loads(path.read_bytes())) == ["other"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"ci": 3}', b'{"ci": {"day": "x"}}', b"\xff" * 100])
def test_a_damaged_file_is_begun_again(path: Path, clock: Clock, damage: bytes) -> None:
    path.write_bytes(damage)
    quotas = Quotas(documents_per_day=1)
    FileMeter(path, now=clock).take("ci", quotas, 1, 0)
    with pytest.raises(ToolError):
        FileMeter(path, now=clock).take("ci", quotas, 1, 0)


def test_without_a_file_a_process_counts_for_itself(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    meter = FileMeter(tmp_path / "no" / "folder", now=clock)
    quotas = Quotas(documents_per_day=1)
    meter.take("ci", quotas, 1, 0)
    with pytest.raises(ToolError):
        meter.take("ci", quotas, 1, 0)
    assert let_pass(meter, 3) == 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
