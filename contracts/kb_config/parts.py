"""The optional parts of a program: each is a package with a `PART`, and a line in the `PARTS` of its program.

Without the package and its line the program runs without the part. The package itself imports no more than
its settings or the arguments of its commands; its other modules are imported when the part is used, by the
name `module:object` in `PART`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kb_config.settings import Settings


class PartSettings(Settings, frozen=True, kw_only=True):
    """The settings of an optional part."""

    @property
    def is_on(self) -> bool:
        """True if these settings alone switch the part on."""
        return False

    def check(self) -> None:
        """Check the settings of a part that is used. Raises SettingsError."""

    def warnings(self) -> Iterator[str]:
        """Yield warnings about valid but risky settings."""
        yield from ()


@dataclass(frozen=True, slots=True)
class Part:
    """An optional part, by the name of the extra that has its packages; its program adds the seams."""

    name: str
    settings: type[PartSettings] = PartSettings

    def is_on(self, settings: Settings) -> bool:
        """True if the settings of the program switch the part on."""
        return settings.of(self.settings).is_on


def loaded(packages: Sequence[str]) -> Iterator[Any]:
    """Yield the `PART` of each package."""
    for package in packages:
        yield import_module(package).PART


def imported(name: str) -> Any:
    """Import and return the object `module:object`."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
