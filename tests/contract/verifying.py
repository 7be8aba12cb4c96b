"""`kb verify` as somebody runs it: a process with arguments and an environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.engines import API_KEY


def kb_verify(
    *arguments: str, cwd: Path, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command with the key in its environment."""
    return subprocess.run(
        [sys.executable, "-m", "kb_cli.main", "verify", *arguments],
        env={**os.environ, "KB_API_KEY": API_KEY, **(environ or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
