"""The files that readers need to run: Python, its packages, and system files.

A folder of packages is readable completely. In any other folder of the module search path, such as the
working directory of the engine, only packages and modules are readable, and the names of other files: a
database may be there.
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
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store", "/gnu/store",
    "/home/linuxbrew/.linuxbrew", "/etc/ld.so.cache",
    # Fonts that a PDF references without embedding them.
    "/usr/share/fonts", "/usr/share/X11/fonts", "/usr/local/share/fonts",
    # The number of processors, and random numbers.
    "/sys/devices/system/cpu", "/proc/cpuinfo", "/dev/urandom",
)  # fmt: skip
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_OWN = ("kb_config", "kb_contracts", "kb_readers")


class Readable(NamedTuple):
    """A file, or a folder with its content; it may not exist."""

    path: Path
    names_only: bool = False  # true if files in it and in its subfolders may be listed and not read


def files(package: str) -> Iterator[Readable]:
    """Yield the readable files. `package` is the package of the reader."""
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
