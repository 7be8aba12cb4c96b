"""Comparison of two plays of one history, and of their differences with the ledger."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from tests.parity.playing import Played

LEDGER = Path(__file__).with_name("ledger.toml")


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An accepted difference: `where` are patterns over `operation:path`, `reason` explains it."""

    id: str
    where: tuple[str, ...]
    reason: str

    def covers(self, place: str) -> bool:
        """True if a difference at `place` belongs to this entry."""
        return any(fnmatchcase(place, pattern) for pattern in self.where)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entry: tuple[Entry, ...]


@dataclass(frozen=True)
class Difference:
    """A place in an answer in which the two sides differ."""

    number: int
    place: str
    engine: Any
    simulator: Any
    asked: str

    def __str__(self) -> str:
        return (
            f"step {self.number}: {self.place}\n    asked: {self.asked}\n"
            f"    the engine has {self.engine!r}, the simulator {self.simulator!r}"
        )


def ledger(path: Path = LEDGER) -> tuple[Entry, ...]:
    return msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File).entry


def differences(engine: Iterable[Played], simulator: Iterable[Played]) -> list[Difference]:
    return [
        Difference(number, f"{one.step.operation}:{place}", left, right, one.asked)
        for number, (one, two) in enumerate(zip(engine, simulator, strict=True))
        for place, left, right in _differ("", one.answer, two.answer)
    ]


def _differ(place: str, left: Any, right: Any) -> Iterator[tuple[str, Any, Any]]:
    match left, right:
        case dict(), dict():
            for key in sorted({*left, *right}):
                yield from _differ(f"{place}.{key}".lstrip("."), left.get(key), right.get(key))
        case list(), list():
            if len(left) != len(right):
                yield f"{place}.length", len(left), len(right)
            for one, two in zip(left, right, strict=False):
                yield from _differ(f"{place}[]", one, two)
        case _ if left != right or isinstance(left, bool) is not isinstance(right, bool):
            yield place, left, right
        case _:
            pass
