"""The page on scaling contains the constants and estimates that `kb bench fleet` prints."""

from __future__ import annotations

from pathlib import Path

from kb_load.fleet import costs

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"


def test_the_page_has_the_table_of_the_command() -> None:
    assert costs.table() in PAGE.read_text("utf-8"), f"docs/scaling.md lags; its table is:\n{costs.table()}"
