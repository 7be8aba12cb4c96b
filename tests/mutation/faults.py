"""Change a hundred places of the source, one at a time, and check that a test fails for each.

    python -m tests.mutation.faults OUT.json                 the faults of `faults.json` on this checkout
    python -m tests.mutation.faults OUT.json --root DIR      the same on another checkout
    python -m tests.mutation.faults OUT.json --draw          draw one for each fault that is gone
    python -m tests.mutation.faults OUT.json --draw SEED     draw all faults from another seed
    python -m tests.mutation.faults --compare BEFORE.json AFTER.json

A scratch copy of the tree has all faults at once, each as `((changed) if at(7) else (original))`. One run of
the tests of `make test` and of the promises, without an active fault, records which tests reach which fault.
Then each fault is active in turn for its tests: the nearest and cheapest files first, the promises last. The
result does not depend on the wall clock: a fault's tests are chosen up to `--seconds` of processor time (the
row counts the tests left out), a run that takes many times that much is a kill, and a test kills only if it
fails again on its own.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import msgspec

from tests.mutation.fault_places import Fault, Module, Site, drawn, instrumented, located, modules
from tests.support.patience import ANSWER_SECONDS

HERE = Path(__file__).parent
LIST = HERE / "faults.json"
PARTS = (
    ("contracts/kb_contracts", "contracts/kb_http"),
    ("engine/kb_engine",),
    ("server/kb_server", "server/mcp_aiohttp"),
    ("engine/kb_readers",),
)
PART_SIZE = 25
"""Number of faults of each part."""
SPARE = 3
"""Number of faults drawn for each one that is wanted, because some are reached by no test."""
RUNAWAY = 5
"""A run that takes this many times the processor time of its tests counts as a kill."""
SHADOWED = ("contracts", "server", "engine", "cli", "simulator", "load")
PROMISES = "tests/contract/test_promises.py"


class FaultList(msgspec.Struct):
    """The content of `faults.json`."""

    seed: int
    faults: list[Fault]


class Probed(msgspec.Struct):
    """Results of pytest with the probe: tests by fault, processor seconds by test, failures by test."""

    status: int = 0
    reached: dict[int, set[str]] = msgspec.field(default_factory=dict)
    costs: dict[str, float] = msgspec.field(default_factory=dict)
    failed: dict[str, str] = msgspec.field(default_factory=dict)


class Row(msgspec.Struct):
    """The outcome of a fault: `killed`, `survived`, or `unreached` by any test."""

    fault: Fault
    outcome: str
    killed_by: str = ""
    why: str = ""
    tests: int = 0
    left_out: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        left_out = f"({self.left_out} tests left out) " if self.left_out else ""
        return f"{self.outcome:9} {self.fault}  {self.killed_by} {left_out}{self.seconds:.0f} s"


class Tree:
    """A scratch copy of a checkout that runs pytest with the probe."""

    def __init__(self, root: Path, path: Path, added: Sequence[str] = ()) -> None:
        self.path, self._python = path, root / ".venv/bin/python"
        listing = subprocess.run(["git", "-C", root, "ls-files", "-z"], check=True, capture_output=True)
        for file in map(os.fsdecode, listing.stdout.split(b"\0")):
            if (root / file).is_file():
                (path / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / file, path / file)
        self._probe = path / "contracts/kb_fault.py"
        shutil.copy(HERE / "fault_probe.py", self._probe)
        self._probe.with_name("kb_fault_added.txt").write_text("\n".join((PROMISES, *added)))

    def pytest(self, *arguments: str, active: int = -1, limit: float | None = None) -> tuple[Probed, float]:
        """Run pytest; return the results and processor seconds.

        If the probe wrote no results, the status is that of the process.
        """
        scratch, written = self.path / "tmp", self._probe.with_name("kb_fault")
        for each in (scratch, written):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir()
        self._probe.with_name("kb_fault_active.py").write_text(str(active))
        environment = {
            **os.environ,
            "CI": "true",  # makes generated examples the same in every run
            "TMPDIR": str(scratch),
            "PYTHONPATH": os.pathsep.join(str(self.path / each) for each in SHADOWED),
        }
        bound = f"ulimit -S -t {limit:.0f}; " if limit else ""
        command = ["bash", "-c", f'{bound}exec nice -n 10 "$@"', "-", str(self._python), "-m", "pytest"]
        command += ["-q", "-p", "kb_fault", "-p", "no:randomly", "-m", "not process or added", *arguments]
        with (self.path / "pytest.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=self.path, env=environment, stdout=log, stderr=log)
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        results = [msgspec.json.decode(each.read_bytes(), type=Probed) for each in written.iterdir()]
        return merged(results or [Probed(process.returncode or 1)]), used.ru_utime + used.ru_stime

    def log(self) -> str:
        """The end of the last run's output."""
        return (self.path / "pytest.log").read_text(errors="replace").strip()[-500:]


def merged(results: Sequence[Probed]) -> Probed:
    """Merge the results of several processes."""
    whole = Probed(max((each.status for each in results), key=abs))
    for each in results:
        whole.costs |= each.costs
        whole.failed |= each.failed
        for number, tests in each.reached.items():
            whole.reached.setdefault(number, set()).update(tests)
    return whole


def selected(file: str, reached: set[str], probed: Probed, seconds: float) -> tuple[list[str], int]:
    """Return the tests to run for a fault, in order, and the number of tests left out.

    If `reached` names a file, a fixture of it reaches the fault, and all its tests are chosen.
    """
    broken = {each.partition("[")[0] for each in probed.failed}
    files: dict[str, list[str]] = defaultdict(list)
    for test in sorted(probed.costs.keys() - broken):
        path = test.partition("::")[0]
        if reached & {test, path} or path == PROMISES:
            files[path].append(test)
    cost = {path: sum(probed.costs[test] for test in tests) for path, tests in files.items()}
    words = _words(file)
    chosen: list[str] = []
    left_out = 0
    for path in sorted(files, key=lambda path: (path == PROMISES, -len(words & _words(path)), cost[path])):
        if cost[path] <= seconds or path == PROMISES:
            seconds -= cost[path]
            chosen += files[path]
        else:
            left_out += len(files[path])
    return chosen, left_out


def _words(path: str) -> set[str]:
    return {*re.findall(r"[a-z]+", path)} - {"kb", "py", "test", "tests", "unit"}


def row_of(tree: Tree, number: int, fault: Fault, probed: Probed, seconds: float) -> Row:
    """Run the tests of a fault until one fails, and repeat that test."""
    reached = probed.reached.get(number)
    if not reached:
        return Row(fault, "unreached")
    tests, left_out = selected(fault.file, reached, probed, seconds)
    row = Row(fault, "survived", tests=len(tests), left_out=left_out)
    limit = RUNAWAY * (sum(probed.costs[test] for test in tests) + 20)
    bounds = ("-x", "--timeout", str(ANSWER_SECONDS))
    while tests:
        listing = tree.path / "tests.txt"
        listing.write_text("\n".join(tests))
        result, used = tree.pytest(*bounds, f"@{listing}", active=number, limit=limit)
        row.seconds += used
        if not result.status:
            break
        if not result.failed:
            row.killed_by = (
                "processor time" if result.status == -signal.SIGXCPU else "no start or end of pytest"
            )
            row.outcome, row.why = "killed", tree.log()
            break
        failed, why = next(iter(result.failed.items()))
        test = failed.partition("[")[0]
        again, used = tree.pytest(*bounds, test, active=number, limit=limit)
        row.seconds += used
        if again.status:
            row.outcome, row.killed_by, row.why = "killed", failed, why
            break
        tests = tests[tests.index(test) + 1 :]
    return row


def gone(faults: Sequence[Fault], sites: Sequence[Site | None]) -> str:
    """Return a message that names the faults whose text is not in the source; "" if there are none."""
    lost = [str(fault) for fault, site in zip(faults, sites, strict=True) if site is None]
    if not lost:
        return ""
    return "\n".join(
        [
            f"{LIST.name} names {len(lost)} faults whose text is not in the source any more:",
            *lost,
            "Where the expression stands elsewhere now, correct the entry. Replace the others:",
            "python -m tests.mutation.faults OUT.json --draw",
        ]
    )


def candidates(groups: Sequence[Sequence[Module]], listed: Sequence[Site], seed: int) -> list[list[Site]]:
    """Return, for each part, faults from the seed to choose from until the part has its number of faults."""
    chance = random.Random(seed)
    found = []
    for group in groups:
        sites = [site for module in group for site in module.sites()]
        files = {module.file for module in group}
        missing = max(0, PART_SIZE - sum(site.fault.file in files for site in listed))
        found.append(drawn(sites, missing * SPARE, chance, listed))
    return found


def run(root: Path, seed: int | None, seconds: float, added: Sequence[str], *, draw: bool) -> list[Row]:
    """Run the tests of each fault on a checkout."""
    groups = [modules(root, folders) for folders in PARTS]
    source = [module for group in groups for module in group]
    content = msgspec.json.decode(LIST.read_bytes(), type=FaultList)
    listed = content.faults if seed is None else []
    found = located(listed, (site for module in source for site in module.sites()))
    if not draw and (message := gone(listed, found)):
        raise SystemExit(message)
    sites = [site for site in found if site is not None]
    numbers = [*range(len(sites))]
    parts: list[range] = []
    for drawn_sites in candidates(groups, sites, seed or content.seed) if draw else ():
        parts.append(range(len(sites), len(sites) + len(drawn_sites)))
        sites += drawn_sites
    faults = [site.fault for site in sites]
    with tempfile.TemporaryDirectory(prefix="kb-faults-") as folder:
        trees = [Tree(root, Path(folder, name), added) for name in ("one", "two")]
        for tree in trees:
            for file, text in instrumented(source, sites).items():
                (tree.path / file).write_bytes(text)
        probed, used = trees[0].pytest("--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")
        if not probed.costs:
            raise SystemExit(trees[0].log())
        print(
            f"{len(probed.costs)} tests, {used:.0f} s of processor time; failed: {[*probed.failed]}",
            flush=True,
        )
        if draw:
            for part in parts:
                numbers += [number for number in part if probed.reached.get(number)][: len(part) // SPARE]
            lines = ",\n".join(msgspec.json.encode(faults[number]).decode() for number in numbers)
            LIST.write_text(f'{{"seed": {seed or content.seed}, "faults": [\n{lines}\n]}}\n')
        free: Queue[Tree] = Queue()
        for tree in trees:
            free.put(tree)

        def one(number: int) -> Row:
            tree = free.get()
            try:
                row = row_of(tree, number, faults[number], probed, seconds)
            finally:
                free.put(tree)
            print(row, flush=True)
            return row

        with ThreadPoolExecutor(len(trees)) as threads:
            rows = list(threads.map(one, numbers))
    used += sum(row.seconds for row in rows)
    print(f"{dict(Counter(row.outcome for row in rows))}, {used:.0f} s of processor time")
    return rows


def new_survivors(before: Sequence[Row], after: Sequence[Row]) -> list[Row]:
    """Return the faults that were killed before and survive now."""
    killed = {row.fault.place for row in before if row.outcome == "killed"}
    return [row for row in after if row.outcome != "killed" and row.fault.place in killed]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, nargs="?", help="file for the results")
    parser.add_argument("--root", type=Path, default=HERE.parents[1], help="checkout with its .venv")
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of the tests of a fault")
    parser.add_argument("--add", type=Path, metavar="TESTS", help="list of tests to run despite their mark")
    parser.add_argument(
        "--draw",
        type=int,
        nargs="?",
        const=0,
        metavar="SEED",
        help="write faults.json: replace faults that are gone, or all of them from this seed",
    )
    parser.add_argument("--compare", type=Path, nargs=2, metavar="RESULTS", help="print the new survivors")
    options = parser.parse_args(arguments)
    if options.compare:
        before, after = (msgspec.json.decode(each.read_bytes(), type=list[Row]) for each in options.compare)
        survivors = new_survivors(before, after)
        print("\n".join(map(str, survivors)) or "no new survivor")
        return 1 if survivors else 0
    if options.out is None:
        parser.error("a file for the results is missing")
    added = options.add.read_text().splitlines() if options.add else []
    draw = options.draw is not None
    rows = run(options.root.resolve(), options.draw or None, options.seconds, added, draw=draw)
    options.out.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
