"""The core works without its optional parts."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from kb_load.processes import clean_environment
from tests.support.stack import ROOT

CONTRACT = "the core imports optional parts by their names in a table, when they are used"

WITHOUT = """
import importlib, sys

core, missing = (text.split(",") for text in sys.argv[1:])

class Removed:
    def find_spec(self, name, path=None, target=None):
        if any(name == part or name.startswith(part + ".") for part in missing):
            raise ModuleNotFoundError(f"{name} is removed", name=name)

sys.meta_path.insert(0, Removed())
for name in core:
    importlib.import_module(name)
"""


@pytest.mark.process
def test_the_core_can_be_imported_when_its_optional_parts_are_removed() -> None:
    """Removed are also the drivers of PostgreSQL and Qdrant, and the templates of the pages."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (contract,) = (each for each in contracts if each["name"] == CONTRACT)
    removed = [*contract["forbidden_modules"], "asyncpg", "qdrant_client", "jinja2"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT, ",".join(contract["source_modules"]), ",".join(removed)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
