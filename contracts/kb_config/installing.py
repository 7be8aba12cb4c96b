"""The command that installs the packages of an optional part.

kb may have been installed from a checkout, a wheel or an index, so an error message cannot name `kb[extra]`:
pip might not find it under that name. Instead, the packages of an extra are read from kb's own metadata, and
pip finds these in any index.
"""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution

_DISTRIBUTION = "kb-for-agents"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def install_command(*extras: str) -> str:
    """Return the command that installs the missing packages of these extras, or all if none is."""
    listed: list[str] = []
    with suppress(PackageNotFoundError):  # kb runs without having been installed
        listed = distribution(_DISTRIBUTION).requires or []
    split = [entry.partition(";") for entry in listed]
    wanted = [
        requirement.strip()
        for requirement, _, marker in split
        if any(f"extra == {quote}{extra}{quote}" in marker for extra in extras for quote in "'\"")
    ]
    missing = [requirement for requirement in dict.fromkeys(wanted) if not _is_installed(requirement)]
    packages = missing or list(dict.fromkeys(wanted)) or [f"{_DISTRIBUTION}[{','.join(extras)}]"]
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", *packages])


def _is_installed(requirement: str) -> bool:
    name = _NAME.match(requirement)
    try:
        return name is not None and bool(distribution(name.group()).version)
    except PackageNotFoundError:
        return False
