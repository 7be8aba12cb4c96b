"""The page of settings agrees with the settings themselves."""

from __future__ import annotations

import argparse
from itertools import takewhile
from pathlib import Path

from kb_cli.config import all_settings
from kb_engine.settings import EngineSettings
from kb_server.settings import ServerSettings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

DEPENDS_ON_THE_MACHINE = {
    "KB_INGEST_WORKERS": "cores, at most 8",
    "KB_SEARCH_PROCESSES": "cores less one, at most 4",
}


def rows() -> list[str]:
    home = str(Path.home())
    written = []
    for row in all_settings(argparse.Namespace(), environ={}):
        default = DEPENDS_ON_THE_MACHINE.get(row.variable, row.value.replace(home, "~"))
        cell = f"`{default}`" if default not in ("", "not set") else "none"
        written.append(f"| `{row.variable}` | {cell} | {', '.join(row.parts)} | {row.help} |")
    return written


def test_the_page_has_every_setting_with_its_default_and_its_meaning() -> None:
    written = [" | ".join(cells[:-1]) + " |" for cells in cells_of("Variable")]
    assert written == rows(), "docs/settings.md lags; its table is:\n" + "\n".join(rows())


def test_the_page_has_for_every_setting_a_situation_that_needs_another_value() -> None:
    assert [cells[0] for cells in cells_of("Variable") if not cells[-1]] == []


def test_the_page_has_every_removed_setting_with_its_replacement() -> None:
    removed = ServerSettings.removed() | EngineSettings.removed()
    assert cells_of("Removed variable") == [[f"| `{name}`", removed[name]] for name in sorted(removed)]


def cells_of(heading: str) -> list[list[str]]:
    """Return the cells of each row of the page's table whose first column has this heading."""
    _, _, table = PAGE.read_text("utf-8").partition(f"| {heading} |")
    rows = takewhile(lambda line: line.startswith("|"), table.splitlines()[2:])
    return [row.removesuffix(" |").split(" | ") for row in rows]
