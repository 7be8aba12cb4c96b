"""The optional parts of the command line: `kb_config.parts` has their form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kb_cli.commands import Command
from kb_config.parts import loaded

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
    return loaded(PARTS)
