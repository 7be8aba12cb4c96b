"""The files that the readers themselves consist of: Python, its packages, and what these look up.

A folder of packages is readable as a whole. Of another folder in which Python looks for modules, such as the
one in which somebody started the engine, only the packages and modules are, and the names of the rest: a base
may lie beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import all_suffixes
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_SYSTEM = (
    # Libraries.
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/nix/store",
    "/gnu/store",
    "/home/linuxbrew/.linuxbrew",
    "/etc/ld.so.cache",
    # Fonts that a PDF names without having them.
    "/usr/share/fonts",
    "/usr/share/X11/fonts",
    "/usr/local/share/fonts",
    # What processors there are, and chance.
    "/sys/devices/system/cpu",
    "/proc/cpuinfo",
    "/dev/urandom",
)
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_OWN = ("kb_config", "kb_contracts", "kb_readers")


class Readable(NamedTuple):
    """A file, or a folder with all in it; some may not exist."""

    path: Path
    names_only: bool = False
    """Whether its files, and those of its folders, may be listed and not read."""


def files(package: str) -> Iterator[Readable]:
    """What may be read. `package` is the name of the package that reads the file."""
    yield from (Readable(Path(path)) for path in _SYSTEM)
    libraries = [Path(prefix) / "lib" for prefix in (sys.prefix, sys.base_prefix)]
    yield from map(Readable, libraries)
    for name in (*_OWN, package):
        spec = find_spec(name)
        for folder in (spec and spec.submodule_search_locations) or ():
            yield Readable(Path(folder))
    for entry in map(Path, filter(None, sys.path)):
        if any(entry.is_relative_to(path) for path in libraries):
            continue
        if entry.name in _PACKAGE_FOLDERS or not entry.is_dir():
            yield Readable(entry)
            continue
        yield Readable(entry, names_only=True)
        with suppress(OSError):
            yield from (Readable(each) for each in entry.iterdir() if _can_be_imported(each))


def _can_be_imported(path: Path) -> bool:
    return path.name.endswith(tuple(all_suffixes())) or (path / "__init__.py").is_file()
