"""Installation commands in error texts."""

from __future__ import annotations

import shlex
import sys
from importlib import metadata

import pytest

from kb_config import installing
from kb_config.installing import install_command


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    def distribution(name: str) -> metadata.Distribution:
        if name in missing:
            raise metadata.PackageNotFoundError(name)
        return metadata.distribution(name)

    monkeypatch.setattr(installing, "distribution", distribution)


def test_the_command_names_what_is_missing_for_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "rapidocr")
    assert shlex.split(install_command("ocr")) == [
        sys.executable,
        "-m",
        "pip",
        "install",
        "rapidocr<4,>=3.10",
    ]


def test_the_packages_of_several_extras_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "uvloop", "mcp")
    assert shlex.split(install_command("server", "engine"))[4:] == ["uvloop>=0.21", "mcp<3,>=2.3"]


def test_with_all_packages_installed_the_command_names_all_of_them() -> None:
    assert shlex.split(install_command("postgres"))[4:] == ["asyncpg>=0.30"]


def test_the_name_of_kb_itself_is_never_looked_for_in_an_index() -> None:
    for extra in ("server", "engine", "ocr", "otel", "postgres", "sim", "verify"):
        assert "kb-for-agents" not in install_command(extra)
