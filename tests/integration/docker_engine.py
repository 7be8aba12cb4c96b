"""The Docker engine behind this tier: whether one answers, building images, and removing what tests left.

Everything a test makes carries two labels: one that says it is a test's, and one that names the process.
What the labels of a process that no longer runs are on is removed at the next start, so that a run that was
killed leaves nothing for long, and runs at the same time leave each other alone.
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
    """What a docker command prints.

    Raises:
        DockerFailed: it ended with another status than 0.
    """
    return run("docker", *arguments, seconds=seconds)


def run(*command: str, seconds: float, **environment: str) -> str:
    """What a command prints on stdout.

    Raises:
        DockerFailed: it ended with another status than 0.
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
    """Why no Docker engine can be used; empty where one answers."""
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
    """Why there is no image of this name, here or to be pulled; empty where there is one."""
    for command in (("image", "inspect", name), ("pull", "--quiet", name)):
        try:
            docker(*command, seconds=SUITE_SECONDS)
        except DockerFailed as error:
            why = str(error).strip().splitlines()[-1]
        else:
            return ""
    return why


def compose_command() -> list[str]:
    """`docker compose` or `docker-compose`, whichever answers; empty where neither does."""
    for command in (["docker", "compose"], ["docker-compose"]):
        try:
            run(*command, "version", seconds=ANSWER_SECONDS)
        except (DockerFailed, OSError, subprocess.TimeoutExpired):
            continue
        return command
    return []


def build(target: str, tag: str, *, file: Path = ROOT / "Dockerfile", context: Path = ROOT) -> str:
    """Build a target of a Dockerfile; the tag.

    Raises:
        DockerFailed: with the builder's output.
    """
    chosen = ("--target", target) if target else ()
    docker("build", "--file", str(file), *chosen, "--tag", tag, str(context), seconds=SUITE_SECONDS)
    return tag


def inspect(kind: str, name: str) -> dict[str, Any]:
    """What Docker knows of an image, a container, a volume or a network."""
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
    """Remove what processes of this machine have made that no longer run."""
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
    for each in made:
        force = ("--force", "--volumes") if each.kind == "container" else ()
        docker(each.kind, "rm", *force, each.name)


def _is_orphan(named: str) -> bool:
    host, _, process = named.partition(":")
    number, _, started = process.partition(":")
    return host == socket.gethostname() and number.isdecimal() and _started(int(number)) != started


def _started(number: int) -> str:
    """When a process started, in the kernel's ticks; empty where it does not run or nobody can tell."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
