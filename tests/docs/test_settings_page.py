"""The page of settings agrees with the settings themselves."""

from __future__ import annotations

import argparse
from pathlib import Path

from kb_cli.config import all_settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

DEPENDS_ON_THE_MACHINE = {"KB_INGEST_WORKERS": "cores, at most 8"}


def rows() -> list[str]:
    home = str(Path.home())
    written = []
    for row in all_settings(argparse.Namespace(), environ={}):
        default = DEPENDS_ON_THE_MACHINE.get(row.variable, row.value.replace(home, "~"))
        cell = f"`{default}`" if default not in ("", "not set") else "none"
        written.append(f"| `{row.variable}` | {cell} | {', '.join(row.parts)} | {row.help} |")
    return written


def test_the_page_has_every_setting_with_its_default_and_its_meaning() -> None:
    written = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    assert written == rows(), "docs/settings.md lags; its table is:\n" + "\n".join(rows())
