"""The guides of the site stay short: every page but those under Reference and Measurements."""

from __future__ import annotations

import re

from tests.support.page_commands import PAGES
from tests.support.stack import ROOT

MAX_WORDS = 28_000
"""Words of all guides, outside of fenced blocks."""
NO_GUIDES = {"Reference", "Measurements"}
INDEX = ROOT / "docs" / "index.md"
_SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^- \[.+?\]\((.+?\.md)\)", re.MULTILINE)
_FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, list[str]]:
    """The pages of each section of the navigation, by their path in the repository."""
    return {
        title: [(INDEX.parent / path).resolve().relative_to(ROOT).as_posix() for path in _ENTRY.findall(body)]
        for title, body in _SECTION.findall(INDEX.read_text("utf-8"))
    }


def words(text: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in _FENCED.sub("", text).split())


def test_the_guides_hold_few_words() -> None:
    by_section = sections()
    guides = [page for title in by_section.keys() - NO_GUIDES for page in by_section[title]]
    counts = {page: words((ROOT / page).read_text("utf-8")) for page in [*guides, "docs/index.md"]}
    longest = sorted(counts.items(), key=lambda item: -item[1])[:5]
    assert sum(counts.values()) <= MAX_WORDS, longest


def test_every_page_stands_once_in_the_navigation() -> None:
    pages = [page for named in sections().values() for page in named]
    assert sorted([*pages, "docs/index.md"]) == PAGES


def test_words_are_counted_outside_of_fenced_blocks() -> None:
    assert words("Two words\n\n```sh\nkb search bees\n```\n\n| `and` | three |\n") == 4
