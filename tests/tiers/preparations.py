"""Programs and images that tiers need; they are installed or built beside other tiers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.conformance import node
from tests.support.scope import is_whole

_TARGETS = ("server", "engine-slim", "engine", "simulator", "runner")


def _debian_package(name: str) -> None:
    """Install a package of Debian, unless its command is there."""
    if shutil.which(name) is None and shutil.which(name, path="/usr/sbin") is None:
        _run("apt-get", "-o", "Acquire::Retries=3", "update", "-qq")
        _run("apt-get", "-o", "Acquire::Retries=3", "install", "-y", "-qq", "--no-install-recommends", name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def _images() -> None:
    """Start a Docker engine and build the images, so that the builds of the tests find every layer.

    `KB_START_DOCKER` names the command that starts an engine, by default a script beside the checkout.
    """
    start = Path(os.environ.get("KB_START_DOCKER", "../shared/tools/docker-here"))
    if os.access(start, os.X_OK):
        # The engine outlives this run, and the folder of temporary files does not.
        _run("env", "--unset=TMPDIR", str(start.resolve()))
    for target in _TARGETS:
        _run("docker", "build", "--quiet", "--target", target, ".")
    _run("docker", "build", "--quiet", "tests/integration/balancer")
    if is_whole():
        _run("docker", "build", "--quiet", "--file", "tests/integration/foreign_engine/Dockerfile", ".")


PREPARATIONS: dict[str, Callable[[], None]] = {
    "browser": lambda: _debian_package("chromium"),
    "proxy": lambda: _debian_package("nginx"),
    "pooler": lambda: _debian_package("pgbouncer"),
    "wrk": lambda: _debian_package("wrk"),
    "node": node.install,
    "images": _images,
}
"""In the order in which they run. One at a time, because two runs of apt exclude each other."""
