"""Run the tiers that a change can have broken, as `.ci/run` does.

    python -m tests.tiers.run                  tiers whose files have changed since they last passed
    python -m tests.tiers.run --all            every tier, and the rows that only a whole run has
    python -m tests.tiers.run --list           tiers that would run, and why
    python -m tests.tiers.run engine faults    these tiers
    python -m tests.tiers.run --commit-costs   write the processor time of each tier into costs.json

A failed tier does not stop the next, and is not repeated. Exit status 1 if one failed or
grew beyond its budget, which is that of a run without --all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event

from tests.support.costs import FILE_VARIABLE
from tests.support.scope import ALL_VARIABLE
from tests.tiers import budget
from tests.tiers.preparations import PREPARATIONS
from tests.tiers.records import Records, records_folder
from tests.tiers.table import TIERS, Tier, command_of

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = (sys.executable, "-m", "tests.tiers.reference")
BETWEEN_REFERENCES = 45.0
"""Seconds from one run of the reference workload beside the tiers to the next."""


@dataclass(frozen=True)
class Usage:
    """Exit status of a command, its wall time, and its processor time with its children's, in seconds."""

    status: int
    wall: float
    processor: float


@dataclass(frozen=True)
class Result:
    """A tier that ran. `tests`: processor seconds by test, empty if it ran no pytest."""

    tier: Tier
    usage: Usage
    tests: Mapping[str, float]

    @property
    def passed(self) -> bool:
        return self.usage.status == 0

    def cost(self, reference: float) -> budget.Cost:
        return budget.cost_of(self.usage.processor, self.tests, reference)


def spend(command: Sequence[str], **environment: str) -> Usage:
    """Run a command in the checkout to its end."""
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL)
    try:
        _, status, used = os.wait4(process.pid, 0)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    return Usage(process.returncode, time.monotonic() - began, used.ru_utime + used.ru_stime)


def run_tier(tier: Tier, folder: Path) -> Result:
    """Run the command of a tier; `folder` receives the costs of its tests."""
    costs = folder / f"{tier.name.replace(' ', '-')}.json"
    usage = spend(command_of(tier), **{FILE_VARIABLE: str(costs)})
    tests = json.loads(costs.read_text(encoding="utf-8")) if costs.exists() else {}
    return Result(tier, usage, tests)


@contextmanager
def reference_beside() -> Iterator[list[float]]:
    """Run the reference workload before the block and repeatedly beside it; yield its processor seconds."""
    spent = [spend(REFERENCE).processor]
    ended = Event()

    def measure() -> None:
        while not ended.wait(BETWEEN_REFERENCES):
            spent.append(spend(REFERENCE).processor)

    with ThreadPoolExecutor(1) as beside:
        beside.submit(measure)
        try:
            yield spent
        finally:
            ended.set()


def chosen(names: Collection[str], *, everything: bool, records: Records) -> Iterator[tuple[Tier, str]]:
    """Each tier with the reason why it runs; "" if it does not have to."""
    for tier in TIERS:
        if names:
            yield tier, "named" if tier.name in names else ""
        elif everything or tier.always:
            yield tier, "all tiers" if everything else "every run"
        else:
            at = records.passed_at(tier)
            yield tier, "" if at else "no record of a pass with these files"


class Preparations:
    """The preparations of some tiers, one after the other beside the tiers."""

    def __init__(self, tiers: Collection[Tier]) -> None:
        self._executor = ThreadPoolExecutor(1)
        wanted = {need for tier in tiers for need in tier.needs}
        self._running: dict[str, Future[None]] = {
            name: self._executor.submit(prepare) for name, prepare in PREPARATIONS.items() if name in wanted
        }

    def finish(self, tier: Tier) -> None:
        """Wait for the preparations of a tier.

        Raises:
            Exception: as raised by a preparation.
        """
        for need in tier.needs:
            self._running[need].result()


@contextmanager
def folders_in_memory() -> Iterator[Path]:
    """A folder for temporary files, in memory where there is room: each base of a test syncs its commits."""
    memory = Path("/dev/shm")
    room = os.statvfs(memory).f_bavail * os.statvfs(memory).f_frsize if memory.is_dir() else 0
    with tempfile.TemporaryDirectory(prefix="kb-", dir=memory if room > 6e9 else None) as name:
        folder = Path(name)
        folder.chmod(0o755)  # the user of a database has to reach its files
        yield folder


def run_all(due: Sequence[Tier], records: Records, folder: Path) -> list[Result]:
    """Run tiers in their order."""
    results = []
    preparations = Preparations(due)
    for tier in due:
        print(f"\n=== {tier.name}", flush=True)
        try:
            preparations.finish(tier)
        except (OSError, subprocess.SubprocessError) as error:  # the other tiers are run and recorded
            print(f"not prepared: {error}", flush=True)
            results.append(Result(tier, Usage(1, 0.0, 0.0), {}))
            continue
        result = run_tier(tier, folder)
        results.append(result)
        if result.passed:
            records.add(tier)
    return results


def costs_of(results: Sequence[Result], reference: float) -> dict[str, budget.Cost]:
    """The costs of the measured tiers that passed; of a tier that ran twice the lower one."""
    costs: dict[str, budget.Cost] = {}
    for result in results:
        name, cost = result.tier.name, result.cost(reference)
        if result.tier.measured and result.passed and (name not in costs or cost.ratio < costs[name].ratio):
            costs[name] = cost
    return costs


def report(results: Sequence[Result], reference: float, left_out: Sequence[Tier]) -> Iterator[str]:
    """Lines of the table at the end."""
    yield f"\n{'tier':24} {'tests':>6} {'wall s':>8} {'processor s':>12} {'ratio':>8}"
    for result in results:
        usage, ratio = result.usage, result.cost(reference).ratio
        row = f"{result.tier.name:24} {len(result.tests):6} {usage.wall:8.0f} {usage.processor:12.0f}"
        yield f"{row} {ratio:8.1f}{'' if result.passed else f'  FAILED with {usage.status}'}"
    wall, processor = (sum(getattr(each.usage, name) for each in results) for name in ("wall", "processor"))
    yield f"{'sum':24} {sum(len(each.tests) for each in results):6} {wall:8.0f} {processor:12.0f}"
    yield f"reference workload: {reference:.2f} s of processor time"
    if left_out:
        yield f"not run: {', '.join(tier.name for tier in left_out)}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tiers.run", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=", ".join(tier.name for tier in TIERS))
    parser.add_argument("--all", action="store_true", help="every tier, with rows that no other run has")
    parser.add_argument("--list", action="store_true", help="print what would run")
    parser.add_argument("--commit-costs", action="store_true", help="write the costs into costs.json")
    options = parser.parse_args(arguments)
    if options.all and options.commit_costs:
        parser.error("--commit-costs is for the rows that every run has: leave out --all")
    if unknown := set(options.tiers) - {tier.name for tier in TIERS}:
        parser.error(f"no tier is called {', '.join(sorted(unknown))}")
    records = Records(ROOT, records_folder())
    table = list(chosen(options.tiers, everything=options.all, records=records))
    if options.list:
        print("".join(f"{tier.name:24} {reason or 'not run'}\n" for tier, reason in table), end="")
        return 0
    os.environ |= {"CI": "true", "KB_REQUIRE_DOCKER": "1"} | ({ALL_VARIABLE: "1"} if options.all else {})
    # Hundreds of processes are started: without bytecode each would compile all its imports, and for plugins
    # of pydantic most would read the metadata of all packages, of which the tests need hundreds.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    with folders_in_memory() as folder, reference_beside() as spent:
        os.environ["TMPDIR"] = str(folder)
        results = run_all([tier for tier, reason in table if reason], records, folder)
        limited = not (options.all or options.commit_costs)
        # Processor time varies with the machine's other guests: growth has to be seen twice.
        for name in budget.grown(costs_of(results, median(spent))) if limited else []:
            print(f"\n=== {name}, which took more processor time than it should, once more", flush=True)
            results += [run_tier(tier, folder) for tier in TIERS if tier.name == name]
    reference = median(spent)
    print("\n".join(report(results, reference, [tier for tier, reason in table if not reason])))
    costs = costs_of(results, reference)
    if options.commit_costs:
        budget.commit(costs)
    growth = list(budget.growth(costs)) if limited else []
    print("\n".join(growth))
    return 0 if not growth and all(result.passed for result in results) else 1


def _interrupted(*_: object) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupted)
    sys.exit(main(sys.argv[1:]))
