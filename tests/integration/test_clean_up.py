"""A run that was killed leaves nothing for long, and nobody else's things are touched."""

from __future__ import annotations

import subprocess
import sys

from tests.integration.docker_engine import LABEL, OWNER_LABEL, docker, owner, remove_orphans
from tests.support.stack import ROOT


def volume(made_by: str) -> str:
    return docker("volume", "create", "--label", f"{LABEL}=true", "--label", f"{OWNER_LABEL}={made_by}")


def volumes() -> set[str]:
    return set(docker("volume", "ls", "--quiet", "--filter", f"label={LABEL}").split())


def owner_that_is_gone() -> str:
    code = "from tests.integration.docker_engine import owner; print(owner())"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


def test_what_a_process_made_that_is_gone_is_removed_and_nothing_else(docker: None) -> None:
    made = {name: volume(name) for name in (owner_that_is_gone(), owner(), "another-machine:1:1")}
    others = list(made.values())[1:]
    try:
        remove_orphans()
        assert volumes() & set(made.values()) == set(others)
    finally:
        for left in volumes() & set(made.values()):
            remove(left)


def remove(name: str) -> None:
    docker("volume", "rm", name)
