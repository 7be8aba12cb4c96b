"""Print requirements, one a line, for pip to install before kb itself.

    python requirements.py EXTRA...  the dependencies in pyproject.toml, and these extras
    python requirements.py --pip     pip itself

The first form adds options that pin every package to the version and a hash in requirements.lock. pip
supports hashes in constraints since 26.1; the second form, which every pip can read, replaces an older pip.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

LOCK = Path("requirements.lock")


def requirements(project: dict[str, object], extras: list[str]) -> list[str]:
    """Return the dependencies of a `[project]` table and of its extras, including nested extras.

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


def locked(lock: str, name: str) -> str:
    """Return the entry of a package in a lock file, with its hashes.

    Raises:
        SystemExit: there is no such entry.
    """
    found = re.search(rf"^{re.escape(name)}==.*\n(?: +--hash=.*\n)+", lock, re.MULTILINE)
    if found is None:
        raise SystemExit(f"{LOCK} has no package {name!r}; `make lock` writes it anew")
    return found[0]


if __name__ == "__main__":
    if sys.argv[1:] == ["--pip"]:
        sys.stdout.write(locked(LOCK.read_text(encoding="utf-8"), "pip"))
    else:
        read = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
        options = ["--require-hashes", f"--constraint {LOCK.resolve()}"]
        sys.stdout.write("\n".join(options + requirements(read["project"], sys.argv[1:])) + "\n")
