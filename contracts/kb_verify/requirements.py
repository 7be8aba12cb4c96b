"""What kb promises, one line a requirement: the manifest that reports and tests read."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

MANIFEST = Path(__file__).with_name("requirements.toml")


class RequirementsError(ValueError):
    """The manifest or a mark cannot be read; the message names the place."""


class Requirement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One promise. `deferred` is the reason why no test proves it; `context`: none ever will."""

    id: str
    text: str
    deferred: str | None = None
    context: bool = False


class Capability(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named part of what this version can do, with the ids of the requirements that make it up."""

    name: str
    text: str
    requirements: tuple[str, ...]


class _Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prefix: str
    title: str
    requirements: tuple[Requirement, ...]
    deferred: str | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    group: tuple[_Group, ...]
    capability: tuple[Capability, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """All requirements, in order, and the capabilities they add up to."""

    requirements: tuple[Requirement, ...]
    capabilities: tuple[Capability, ...] = ()


def load(path: Path = MANIFEST) -> Manifest:
    """The manifest at `path`, a group's `deferred` handed down to its entries.

    Raises:
        RequirementsError: the file cannot be read or does not fit.
    """
    try:
        file = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File)
    except (OSError, ValueError) as error:
        raise RequirementsError(f"{path}: {error}") from error
    return Manifest(
        requirements=tuple(
            entry if entry.deferred is not None else msgspec.structs.replace(entry, deferred=group.deferred)
            for group in file.group
            for entry in group.requirements
        ),
        capabilities=file.capability,
    )
