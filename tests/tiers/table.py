"""The tiers of `.ci/run`: their commands, their tests, and the sources on which they depend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

EVERYWHERE = (
    "contracts",
    "requirements.lock",
    "pyproject.toml",
    "Makefile",
    ".ci",
    "tests/conftest.py",
    "tests/support",
    "tests/tiers",
)
"""Paths on which every tier depends."""

PYTEST = (".venv/bin/python", "-m", "pytest", "--numprocesses", "auto", "--dist", "loadfile")


@dataclass(frozen=True)
class Tier:
    """A command that fails if something is broken.

    A tier with `always` runs each time. Any other runs if a file of `tests`, of `sources` or of `EVERYWHERE`
    has changed since the tier last passed.
    """

    name: str
    tests: tuple[str, ...] = ()
    """Folders and files of tests, relative to the checkout."""
    sources: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    """By default pytest on the tests of `tests` with the mark `process`."""
    needs: tuple[str, ...] = ()
    """Preparations of `tests.tiers.preparations` that have to end before it begins."""
    always: bool = False
    measured: bool = True
    """False if it takes a few seconds, is counted by time, or if no child of the command does its work."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths on which the decision to run the tier depends."""
        return tuple(sorted({*self.tests, *self.sources, *EVERYWHERE}))


TIERS = (
    Tier("make test", command=("make", "test"), always=True),
    Tier(
        "promises",
        tests=(
            "tests/contract/test_access.py",
            "tests/contract/test_non_interference.py",
            "tests/faults/test_engine_kill.py",
        ),
        always=True,
    ),
    Tier("contract", tests=("tests/contract",), sources=("engine", "simulator")),
    Tier(
        "schemathesis",
        tests=("tests/contract/test_schemathesis.py",),
        sources=("engine", "simulator", "schemathesis.toml"),
    ),
    Tier("engine", tests=("tests/unit/engine", "tests/unit/readers"), sources=("engine",)),
    Tier(
        "faults",
        tests=("tests/faults",),
        sources=(
            "engine",
            "server",
            "cli/kb_cli/backup.py",
            "cli/kb_cli/check.py",
            "cli/kb_cli/migrate.py",
        ),
        needs=("pooler",),
    ),
    Tier(
        "server",
        tests=("tests/protocol", "tests/oauth", "tests/unit/server"),
        sources=("server", "deploy"),
        needs=("browser", "proxy", "node"),
    ),
    Tier(
        "commands",
        tests=(
            "tests/unit/cli",
            "tests/unit/config",
            "tests/unit/load",
            "tests/unit/test_imports.py",
            "tests/unit/test_optional_parts.py",
            "tests/docs",
            "tests/release",
        ),
        sources=(
            *("cli", "load", "docs", "examples", "skills", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"),
            *("SECURITY.md", ".claude-plugin", "deploy", "tests/conformance/package-lock.json"),
        ),
        needs=("node",),
    ),
    Tier(
        "simulator",
        tests=("tests/unit/simulator", "tests/parity"),
        sources=("simulator", "engine"),
    ),
    Tier("mutants", tests=("tests/mutation",), sources=("simulator",), command=("make", "mutants")),
    Tier("seeded faults", tests=("tests/mutation/test_faults.py",), measured=False),
    Tier(
        "conformance",
        tests=("tests/conformance",),
        sources=("server", "examples/hosting"),
        command=("make", "conformance"),
        needs=("node",),
    ),
    Tier(
        "distributions",
        sources=("docs", "README.md", "ARCHITECTURE.md", "deploy/bundle.py"),
        command=("make", "dist"),
        measured=False,
    ),
    Tier(
        "load",
        sources=("load",),
        command=("make", "load", "FLAGS=--seconds 20 --budgets tests/tiers/load.toml"),
        measured=False,
    ),
    Tier("benchmarks", sources=("load",), command=("make", "bench"), needs=("wrk",), measured=False),
    Tier(
        "images",
        tests=("tests/integration",),
        sources=("Dockerfile", ".dockerignore", "deploy", "compose.yml", "compose.test.yml"),
        needs=("images",),
        measured=False,
    ),
)


def command_of(tier: Tier) -> tuple[str, ...]:
    """The command of a tier; pytest leaves out the paths that are tests of another tier."""
    if tier.command:
        return tier.command
    return (*PYTEST, "-m", "process", *tier.tests, *(f"--ignore={path}" for path in _others(tier)))


def _others(tier: Tier) -> Iterator[str]:
    for other in TIERS:
        if other is not tier:
            yield from (path for path in other.tests if any(path.startswith(f"{own}/") for own in tier.tests))
