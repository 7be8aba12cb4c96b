"""`kb bench`: the benchmarks of `load/`, each with the machine it ran on, and plots where they are wanted.

They are part of the repository, not of the wheel: what they compare with is installed for them alone.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from kb_cli.exits import CliError, Exit
from kb_cli.output import Output

_ROOT = Path(__file__).resolve().parents[3]
_OPTIONS = {
    "hosts": ("rounds", "seconds", "connections"),
    "workers": ("rounds", "seconds", "connections"),
    "uploads": ("rounds", "mib"),
    "engine": ("rounds", "calls", "sizes", "ingest_chunks"),
    "startup": ("rounds",),
    "ingestion": ("rounds", "notes", "pages"),
}


def run(options: argparse.Namespace, out: Output) -> int:
    """Run one benchmark, show its table, and write report and plot where `--report` says."""
    benchmark = _benchmark(options.benchmark)
    given = {name: getattr(options, name) for name in _OPTIONS[options.benchmark]}
    report = benchmark.run(
        **{name: value for name, value in given.items() if value is not None}, note=out.note
    )
    if out.as_json:
        out.document(report)
    else:
        out.text(benchmark.text(report))
    if options.report is not None:
        _write(benchmark, report, Path(options.report), options.benchmark, out)
    return Exit.OK


def _benchmark(name: str) -> Any:
    if not (_ROOT / "load" / "bench").is_dir():
        raise CliError(Exit.FAILED, "the benchmarks are part of the repository; run it from a checkout")
    sys.path.insert(0, str(_ROOT))  # they are no part of an installed kb, and have no other way in
    return import_module(f"load.bench.{name}")


def _write(benchmark: Any, report: Any, folder: Path, name: str, out: Output) -> None:
    import msgspec

    folder.mkdir(parents=True, exist_ok=True)
    found = msgspec.json.format(msgspec.json.encode(report), indent=2)
    (folder / f"{name}.json").write_bytes(found + b"\n")
    (folder / f"{name}.txt").write_text(benchmark.text(report) + "\n", "utf-8")
    benchmark.plot(report, folder / f"{name}.png")
    out.note(f"written: {folder / name}.json, .txt and .png")
