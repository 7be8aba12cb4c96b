"""Prints what pyproject.toml asks for, and the named extras, one requirement a line.

The images install these before kb itself, so that a change of the source builds one small layer.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, object], extras: list[str]) -> list[str]:
    """The dependencies of a `[project]` table and of its extras, and of the extras that those name.

    Raises:
        SystemExit: there is no such extra.
    """
    optional = project.get("optional-dependencies")
    wanted = project.get("dependencies")
    assert isinstance(optional, dict)
    assert isinstance(wanted, list)
    lines, waiting, seen = set(wanted), list(extras), set()
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        if extra not in optional:
            raise SystemExit(f"pyproject.toml has no extra {extra!r}; it has {', '.join(sorted(optional))}")
        for line in optional[extra]:
            own, _, named = line.removesuffix("]").partition("[")
            if own == project["name"]:
                waiting += named.split(",")
            else:
                lines.add(line)
    return sorted(lines)


if __name__ == "__main__":
    read = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    sys.stdout.write("\n".join(requirements(read["project"], sys.argv[1:])) + "\n")
