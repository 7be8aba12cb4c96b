"""Records of the tiers that passed: for each the digest of all files on which its verdict depends.

A record lies in a folder outside of the repository, so that no commit can claim one. Its name is the digest
of the contents, so that a record of other files is never found. Only a run of the whole tier on a clean
checkout writes one. A machine without records runs every tier.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.tiers.table import Tier, command_of

FOLDER_VARIABLE = "KB_CI_RECORDS"
"""Environment variable: the folder of the records, by default one in the user's cache."""

NARROWING = ("FLAGS", "PYTEST_ADDOPTS")
"""Environment variables by which a command can run less than its tier."""


def records_folder() -> Path:
    """The folder of the records; it need not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(FOLDER_VARIABLE) or cache / "kb" / "ci")


class Records:
    def __init__(self, checkout: Path, folder: Path) -> None:
        self._checkout = checkout
        self._folder = folder

    def passed_at(self, tier: Tier) -> str | None:
        """Return the commit at which the tier passed with the present files, or None if it has to run."""
        path = self._path(tier)
        if path is None or not path.exists():
            return None
        return str(json.loads(path.read_text(encoding="utf-8"))["commit"])

    def add(self, tier: Tier) -> bool:
        """Record that the tier has just passed completely; False if this run does not qualify."""
        path = self._path(tier)
        if path is None or any(os.environ.get(name) for name in NARROWING):
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "tier": tier.name,
            "commit": self._git("rev-parse", "HEAD").strip(),
            "at": str(datetime.now(UTC)),
        }
        path.write_text(json.dumps(record), encoding="utf-8")
        return True

    def _path(self, tier: Tier) -> Path | None:
        """The place of the tier's record; None if its files differ from the commit."""
        if self._git("status", "--porcelain", "--", *tier.paths):
            return None
        digest = hashlib.sha256()
        for part in (*command_of(tier), sys.version, platform.platform()):
            digest.update(f"{part}\n".encode())
        digest.update(self._git("ls-tree", "-r", "HEAD", "--", *tier.paths).encode())
        return self._folder / f"{tier.name.replace(' ', '-')}-{digest.hexdigest()}.json"

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self._checkout, check=True, capture_output=True, text=True
        )
        return done.stdout
