"""`kb bench`: the benchmarks of `kb_load`, which knows their options."""

from __future__ import annotations

import argparse

from kb_cli.output import Output
from kb_load.bench.__main__ import main


def run(options: argparse.Namespace, _out: Output) -> int:
    """Run one benchmark; its own arguments are passed on."""
    return main([options.benchmark, *options.arguments], prog="kb bench")
