"""A command of `kb`, and the arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple


class Argument(NamedTuple):
    """Arguments of `add_argument`."""

    names: tuple[str, ...]
    options: dict[str, Any]


GROUPS = {
    "add": "Add to a base",
    "find": "Find in a base",
    "keep": "Keep a base in order",
    "run": "Run and connect",
    "prove": "Prove that it works",
}
"""The purposes of commands with their headings in `kb --help`, in order."""


class Command(NamedTuple):
    """A command: `run` is `module:function`, `extras` are the parts of kb that must be installed for it.

    `group` is a key of `GROUPS`.
    """

    name: str
    group: str
    run: str
    summary: str
    arguments: tuple[Argument, ...]
    extras: tuple[str, ...] = ()


def arg(*names: str, **options: Any) -> Argument:
    """Return the argument of these names."""
    return Argument(names, options)


def number(kind: Callable[[str], float], low: float, high: float) -> Callable[[str], float]:
    """Return a parser of numbers within bounds."""

    def bounded(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"takes a number from {low} to {high}, not {text!r}")
        return value

    return bounded


COUNT = number(int, 0, 2**63 - 1)
POSITIVE = number(int, 1, 2**63 - 1)
LIMIT = number(int, 1, 1_000)

# An option has the name of the setting that it overrides; for a different option name, `dest` has it.
SETTINGS = (
    arg("--config", metavar="FILE", help="settings file (default: KB_CONFIG, ./kb.toml)"),
)  # fmt: skip
JSON = arg("--json", action="store_true", help="print one JSON document")
API_KEY = arg(
    "--api-key", metavar="KEY", help="key of the engine (default: KB_API_KEY, not visible in process lists)"
)
ENGINE_URL = arg("--url", dest="engine_url", metavar="URL", help="URL of the engine (default: KB_ENGINE_URL)")
ENGINE = (*SETTINGS, ENGINE_URL, API_KEY, JSON)
LABELS = (
    arg("--collection", metavar="NAME", help="collection; same as the tag collection:NAME in --tags"),
    arg("--tags", action="append", metavar="TAG,...", help="tags, comma-separated; repeatable"),
)
HOME = arg("--home", metavar="DIR", help="data folder")
EMBEDDER = arg("--embedder", metavar="NAME", help="embedding model")
