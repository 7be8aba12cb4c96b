"""Prints what pyproject.toml asks for, and the named extras, one requirement a line.

The images install these before kb itself, so that a change of the source builds one small layer.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, object], extras: list[str]) -> list[str]:
    """The dependencies of a `[project]` table and of its extras.

    Raises:
        SystemExit: there is no such extra.
    """
    optional = project.get("optional-dependencies")
    wanted = project.get("dependencies")
    assert isinstance(optional, dict)
    assert isinstance(wanted, list)
    for extra in extras:
        if extra not in optional:
            raise SystemExit(f"pyproject.toml has no extra {extra!r}; it has {', '.join(sorted(optional))}")
    return sorted({*wanted, *(line for extra in extras for line in optional[extra])})


if __name__ == "__main__":
    read = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    sys.stdout.write("\n".join(requirements(read["project"], sys.argv[1:])) + "\n")
