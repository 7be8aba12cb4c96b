"""Benchmarks, run from a checkout: `make bench BENCH="hosts --seconds 5"`, or `python -m bench hosts`.

Each compares in one run, in turns, and names the machine that it ran on.

A benchmark is a function `run(*, ..., note) -> Report` with a line in `BENCHMARKS`. Its options are the
parameters that are annotated with an `Option`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec

from kb_config.parts import imported


class Benchmark(NamedTuple):
    """A benchmark's summary, and its function as `module:function`."""

    summary: str
    run: str


BENCHMARKS = {
    "hosts": Benchmark(
        "one search tool on this server, the official SDK, FastMCP and a bare handler", "calls:run_hosts"
    ),
    "workers": Benchmark(
        "cost of a call in one process of kb serve, and in two that share a port", "calls:run_workers"
    ),
    "single": Benchmark("cost of a call in kb up with two processes, and with --single", "calls:run_single"),
    "uploads": Benchmark("chunked and direct uploads beside bare handlers of the same work", "uploads:run"),
    "engine": Benchmark("taking in, and searches as the base grows", "engine:run"),
    "fleet": Benchmark("calls to several engines, real and simulated", "fleet:run"),
    "scaling": Benchmark("capacity of larger bases, estimated and simulated", "scaling:run"),
    "search": Benchmark("searches, beside other stores in their own processes", "search:run"),
    "sets": Benchmark("answers to questions from public packages, beside plain FTS5", "sets:run"),
    "weak": Benchmark("how far `weak` can be trusted, on frozen question sets", "sets:run_weak"),
    "startup": Benchmark("kb stdio, from its start to its first answer", "startup:run"),
}


@dataclass(frozen=True, slots=True)
class Option:
    """A command-line option of a benchmark: a number, some of `names`, or a folder if the default is None.

    The bounds are inclusive.
    """

    help: str
    low: int = 1
    high: int = 1_000
    names: Collection[str] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark of `arguments`: print its table, write its report. Raises SystemExit as argparse."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    prog = "python -m bench"
    summaries = "\n".join(f"  {name:12} {each.summary}" for name, each in BENCHMARKS.items())
    names = argparse.ArgumentParser(
        prog=prog,
        epilog=f"benchmarks ({prog} NAME --help shows their options):\n{summaries}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    names.add_argument("benchmark", choices=BENCHMARKS, metavar="NAME")
    name = names.parse_args(given[:1]).benchmark
    run = function_of(name)
    options = vars(parser_for(run, f"{prog} {name}", BENCHMARKS[name].summary).parse_args(given[1:]))
    as_json, folder = options.pop("json"), options.pop("report")
    report = run(**options, note=partial(print, file=sys.stderr, flush=True))
    document = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    print(document if as_json else report.text())
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(document + "\n", "utf-8")
        (folder / f"{name}.txt").write_text(report.text() + "\n", "utf-8")
        if report.title:
            report.plot(folder / f"{name}.png")
    return 0


def function_of(name: str) -> Callable[..., Any]:
    """Import the module of a benchmark and return its function."""
    run: Callable[..., Any] = imported(f"bench.{BENCHMARKS[name].run}")
    return run


def parser_for(run: Callable[..., Any], prog: str, summary: str) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's options: the parameters of `run` annotated with an `Option`."""
    parser = argparse.ArgumentParser(prog=prog, description=f"{summary}.", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="write the results and a plot to this folder"
    )
    hints = get_type_hints(run, include_extras=True)
    for name, parameter in signature(run).parameters.items():
        option = next((each for each in get_args(hints[name]) if isinstance(each, Option)), None)
        if option is not None:
            if parameter.default is None:
                parser.add_argument(f"--{name}", type=_folder, metavar="DIR", help=option.help)
                continue
            several = isinstance(parameter.default, tuple)
            default = ",".join(map(str, parameter.default)) if several else parameter.default
            one = "NAME" if option.names else "N"
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                type=partial(_names if option.names else _several if several else _bounded, option),
                default=parameter.default,
                metavar=f"{one},..." if several else one,
                help=f"{option.help} (default {default})",
            )
    return parser


def _names(option: Option, text: str) -> list[str]:
    given = text.split(",")
    if unknown := sorted(set(given) - set(option.names)):
        wanted = f"takes some of {', '.join(option.names)}, not {', '.join(unknown)!r}"
        raise argparse.ArgumentTypeError(wanted)
    return [name for name in option.names if name in given]


def _folder(text: str) -> Path:
    if not (folder := Path(text)).is_dir():
        raise argparse.ArgumentTypeError(f"takes a folder, and {text!r} is not one")
    return folder


def _several(option: Option, text: str) -> list[int]:
    return sorted({_bounded(option, part) for part in text.split(",")})


def _bounded(option: Option, text: str) -> int:
    if not text.isdecimal() or not option.low <= int(text) <= option.high:
        wanted = f"takes a number from {option.low} to {option.high}, not {text!r}"
        raise argparse.ArgumentTypeError(wanted)
    return int(text)
