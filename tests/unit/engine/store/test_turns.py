"""Which job is taken next: callers take turns, short notes stand apart, on both stores alike."""

from __future__ import annotations

from pathlib import Path

from kb_engine.store.repository import jobs
from kb_engine.turns import SHORT_BYTES
from tests.support.stores import Base, died, new_file, new_note, opened, prepared


async def queued(base: Base, caller: str, *names: str, **changes: str) -> None:
    for name in names:
        await base.accept(new_file(name, title=name, caller=caller, **changes))


async def taken(base: Base, count: int, *lanes: str, without: tuple[str, ...] = ()) -> list[str]:
    """The titles of the next jobs; fewer where no more wait."""
    chosen = {"lanes": lanes} if lanes else {}
    leases = [
        await base.store.write(jobs.take, f"L{number}", without=without, **chosen) for number in range(count)
    ]
    return [leased.job.title for leased in leases if leased is not None]


async def test_who_comes_late_stands_behind_one_file_of_the_others(base: Base) -> None:
    await queued(base, "ann", *(f"a{number}" for number in range(9)))
    assert await taken(base, 3) == ["a0", "a1", "a2"]
    await queued(base, "ben", "b0", "b1")
    assert await taken(base, 5) == ["a3", "b0", "a4", "b1", "a5"]


async def test_an_empty_queue_forgets_nobodys_turn(base: Base) -> None:
    """Who has had many turns is not behind by as many when somebody else comes."""
    await queued(base, "ann", "a0", "a1", "a2", "a3")
    assert len(await taken(base, 4)) == 4
    await queued(base, "ben", "b0", "b1", "b2")
    await queued(base, "ann", "a4")
    assert await taken(base, 4) == ["b0", "b1", "a4", "b2"]


async def test_short_notes_stand_in_a_lane_of_their_own(base: Base) -> None:
    """A long note stands with the files, and a worker of one lane sees nothing of the other."""
    await queued(base, "ann", "file")
    long = "x" * (SHORT_BYTES + 1)
    await base.accept(new_note(long, title="long note", caller="ann"))
    await base.accept(new_note(long[1:], title="short note", caller="ann"))
    assert await taken(base, 9, "short") == ["short note"]
    assert await taken(base, 9, "long") == ["file", "long note"]


async def test_a_caller_can_be_passed_over(base: Base) -> None:
    await queued(base, "ann", "a0")
    await queued(base, "ben", "b0")
    assert await taken(base, 9, without=("ann", "cem")) == ["b0"]
    assert await taken(base, 9) == ["a0"]


async def test_a_job_goes_on_in_another_lane(base: Base) -> None:
    """Its attempt does not count, its old lease is void, and it stands behind its caller's jobs there."""
    await queued(base, "ann", "a0", "a1")
    for lane in ("long", "long"):
        leased = await base.store.write(jobs.take, "first", (lane,))
        assert leased.lane == "long"
        assert await base.store.write(jobs.change_lane, leased, "scan")
        assert not await base.store.write(jobs.change_lane, leased, "scan")
        assert await base.commit(leased, prepared("text")) is None
    assert await taken(base, 9, "long") == []
    again = await base.store.write(jobs.take, "again", ("scan",))
    assert (again.job.title, again.attempts, again.lane) == ("a0", 1, "scan")
    assert await base.commit(again, prepared("text")) is not None


async def test_the_order_outlives_the_process(base: Base, tmp_path: Path) -> None:
    """What ran when it died comes first again, in its lane."""
    await queued(base, "ann", "a0", "a1", "a2")
    await queued(base, "ben", "b0", "b1")
    assert await taken(base, 3) == ["a0", "b0", "a1"]
    async with opened(await died(base, tmp_path / "left")) as again:
        await again.store.write(jobs.release)
        assert await taken(again, 9) == ["a0", "b0", "a1", "b1", "a2"]
