"""The threat model names an existing test for each defence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "SECURITY.md", ROOT / "docs" / "security.md")
_LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)]+)\)")
_HEADING = re.compile(r"^#+ (?P<words>.+)$", re.MULTILINE)


def defended() -> list[list[str]]:
    """The rows of the table: threat, defence, test."""
    _, _, after = PAGES[0].read_text("utf-8").partition("### What is defended\n")
    table, _, _ = after.partition("### ")
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines() if "|" in line
    ]
    return rows[2:]


@pytest.mark.parametrize("row", defended(), ids=lambda row: row[0][:40])
def test_each_defence_of_the_security_page_links_to_tests(row: list[str]) -> None:
    assert len(row) == 3
    targets = [match["target"] for match in _LINK.finditer(row[2])]
    assert targets
    for target in targets:
        assert target.startswith("tests/")
        assert re.search(r"^ *(async )?def test_", (ROOT / target).read_text("utf-8"), re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for match in _LINK.finditer(page.read_text("utf-8")):
        path, _, anchor = match["target"].partition("#")
        there = page.parent / path
        assert there.exists(), match[0]
        if anchor:
            headings = (found["words"] for found in _HEADING.finditer(there.read_text("utf-8")))
            assert anchor in {re.sub(r"[^\w -]", "", words.lower()).replace(" ", "-") for words in headings}
