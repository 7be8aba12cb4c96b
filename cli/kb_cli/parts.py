"""The optional parts of the command line: each is a package with a `PART`, and its line in `PARTS`.

Without the package and its line `kb` runs without its commands. The package itself imports no more than its
commands need to be parsed; its other modules are imported when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

from kb_cli.commands import Command

PARTS = (
    "kb_cli.exported",
    "kb_cli.imported",
    "kb_cli.connect",
    "kb_cli.evaluation",
    "kb_cli.sync",
)


class Part(NamedTuple):
    """An optional part. `check` is a check of `kb doctor`, as `module:function`."""

    commands: tuple[Command, ...]
    check: str = ""


def parts() -> Iterator[Part]:
    """Yield the parts of `PARTS`."""
    for module in PARTS:
        part: Part = import_module(module).PART
        yield part
