"""The requirements of kb, one line each: the manifest that reports and tests read."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

MANIFEST = Path(__file__).with_name("requirements.toml")


class RequirementsError(ValueError):
    """The manifest or a mark is invalid; the message names the place."""


class Requirement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One promise. `deferred` is the reason for the lack of a test; `context`: there will never be one."""

    id: str
    text: str
    deferred: str | None = None
    context: bool = False


class Capability(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named capability of this version, with the ids of its requirements."""

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
    """All requirements, in order, and the capabilities that they form."""

    requirements: tuple[Requirement, ...]
    capabilities: tuple[Capability, ...] = ()


def load(path: Path = MANIFEST) -> Manifest:
    """Return the manifest at `path`; entries inherit a group's `deferred`.
    Raises RequirementsError: the file cannot be read or is invalid.
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
