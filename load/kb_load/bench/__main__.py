"""`python -m kb_load.bench NAME` and `kb bench NAME`: run a benchmark, print its table, write its report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from kb_load.bench import BENCHMARKS, Option


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m kb_load.bench") -> int:
    """Run the benchmark that `arguments` name; raises SystemExit as argparse does."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    names = argparse.ArgumentParser(prog=prog, allow_abbrev=False)
    names.add_argument("benchmark", choices=BENCHMARKS)
    name = names.parse_args(given[:1]).benchmark
    benchmark = import_module(f"kb_load.bench.{name}")
    options = vars(parser_for(benchmark.run, f"{prog} {name}", BENCHMARKS[name]).parse_args(given[1:]))
    as_json, folder = options.pop("json"), options.pop("report")
    report = benchmark.run(**options, note=partial(print, file=sys.stderr, flush=True))
    document = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    print(document if as_json else benchmark.text(report))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(document + "\n", "utf-8")
        (folder / f"{name}.txt").write_text(benchmark.text(report) + "\n", "utf-8")
        if hasattr(benchmark, "plot"):
            benchmark.plot(report, folder / f"{name}.png")
    return 0


def parser_for(run: Callable[..., Any], prog: str, summary: str) -> argparse.ArgumentParser:
    """The options of a benchmark: those parameters of its `run` that are annotated with an `Option`."""
    parser = argparse.ArgumentParser(prog=prog, description=f"{summary}.", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write the figures and a plot there")
    hints = get_type_hints(run, include_extras=True)
    for name, parameter in signature(run).parameters.items():
        option = next((each for each in get_args(hints[name]) if isinstance(each, Option)), None)
        if option is not None:
            several = isinstance(parameter.default, tuple)
            default = ",".join(map(str, parameter.default)) if several else parameter.default
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                type=partial(_several if several else _bounded, option),
                default=parameter.default,
                metavar="N,..." if several else "N",
                help=f"{option.help} (default {default})",
            )
    return parser


def _several(option: Option, text: str) -> list[int]:
    return sorted({_bounded(option, part) for part in text.split(",")})


def _bounded(option: Option, text: str) -> int:
    if not text.isdecimal() or not option.low <= int(text) <= option.high:
        wanted = f"takes a number from {option.low} to {option.high}, not {text!r}"
        raise argparse.ArgumentTypeError(wanted)
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
