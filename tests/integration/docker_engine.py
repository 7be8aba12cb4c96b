"""The Docker engine for this tier: its availability, building images, and removing leftovers of tests.

Every object that a test creates has two labels: one for tests, and one that names the process. Objects of
processes that no longer run are removed at the next start, so that a killed run leaves nothing for long, and
concurrent runs do not disturb each other.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.patience import ANSWER_SECONDS, CONTAINER_SECONDS, SUITE_SECONDS
from tests.support.stack import ROOT

LABEL = "kb.test"
OWNER_LABEL = "kb.test.owner"


class DockerFailed(AssertionError):
    """A docker command failed; the message is its output."""


def docker(*arguments: str, seconds: float = CONTAINER_SECONDS) -> str:
    """Run a docker command and return its output.

    Raises:
        DockerFailed: its exit status is not 0.
    """
    return run("docker", *arguments, seconds=seconds)


def run(*command: str, seconds: float, **environment: str) -> str:
    """Run a command and return its stdout.

    Raises:
        DockerFailed: its exit status is not 0.
    """
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=seconds,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    if ended.returncode:
        raise DockerFailed(f"{' '.join(command)}: status {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout.strip()


def why_absent() -> str:
    """Return the reason for which no Docker engine is available, or an empty string."""
    if shutil.which("docker") is None:
        return "there is no command `docker`"
    try:
        docker("version", "--format", "{{.Server.Version}}", seconds=ANSWER_SECONDS)
    except DockerFailed as error:
        return str(error).strip().splitlines()[-1]
    except subprocess.TimeoutExpired:
        return f"no Docker engine answers within {ANSWER_SECONDS:.0f} s"
    return ""


def why_no_image(name: str) -> str:
    """Return the reason for which this image is neither present nor can be pulled, or an empty string."""
    for command in (("image", "inspect", name), ("pull", "--quiet", name)):
        try:
            docker(*command, seconds=SUITE_SECONDS)
        except DockerFailed as error:
            why = str(error).strip().splitlines()[-1]
        else:
            return ""
    return why


def compose_command() -> list[str]:
    """Return `docker compose` or `docker-compose` if one of them works, or an empty list."""
    for command in (["docker", "compose"], ["docker-compose"]):
        try:
            run(*command, "version", seconds=ANSWER_SECONDS)
        except (DockerFailed, OSError, subprocess.TimeoutExpired):
            continue
        return command
    return []


def build(target: str, tag: str, *, file: Path = ROOT / "Dockerfile", context: Path = ROOT) -> str:
    """Build a target of a Dockerfile and return the tag.

    Raises:
        DockerFailed: with the builder's output.
    """
    chosen = ("--target", target) if target else ()
    docker("build", "--file", str(file), *chosen, "--tag", tag, str(context), seconds=SUITE_SECONDS)
    return tag


def inspect(kind: str, name: str) -> dict[str, Any]:
    """Return Docker's description of an image, a container, a volume or a network."""
    (found,) = json.loads(docker(kind, "inspect", name))
    return dict(found)


def owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{_started(os.getpid())}"


def labels() -> dict[str, str]:
    return {LABEL: "true", OWNER_LABEL: owner()}


@dataclass(frozen=True)
class _Made:
    kind: str
    name: str
    owner: str


def remove_own() -> None:
    _remove([made for made in _everything() if made.owner == owner()])


def remove_orphans() -> None:
    """Remove objects created by processes of this machine that no longer run."""
    _remove([made for made in _everything() if _is_orphan(made.owner)])


def _everything() -> list[_Made]:
    shown = f'{{{{.ID}}}} {{{{.Label "{OWNER_LABEL}"}}}}'
    named = f'{{{{.Name}}}} {{{{.Label "{OWNER_LABEL}"}}}}'
    asked = [
        ("container", ("ps", "--all", "--no-trunc", "--format", shown)),
        ("network", ("network", "ls", "--no-trunc", "--format", shown)),
        ("volume", ("volume", "ls", "--format", named)),
    ]
    made = []
    for kind, arguments in asked:
        lines = docker(*arguments, "--filter", f"label={LABEL}").splitlines()
        for line in lines:
            name, _, made_by = line.partition(" ")
            made.append(_Made(kind, name, made_by))
    return made


def _remove(made: list[_Made]) -> None:
    # A container's anonymous volumes go with it: `--force` ignores that they are missing.
    force = {"container": ("--force", "--volumes"), "network": (), "volume": ("--force",)}
    for each in made:
        docker(each.kind, "rm", *force[each.kind], each.name)


def _is_orphan(named: str) -> bool:
    host, _, process = named.partition(":")
    number, _, started = process.partition(":")
    return host == socket.gethostname() and number.isdecimal() and _started(int(number)) != started


def _started(number: int) -> str:
    """Start time of a process in the kernel's ticks; empty if it does not run or /proc is missing."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
