"""The page on access lists the invalid tokens from the tests, with their expected answers."""

from __future__ import annotations

from pathlib import Path

from tests.support.tokens import bad_table

PAGE = Path(__file__).parents[2] / "docs" / "access-reference.md"


def test_the_page_has_every_bad_token_with_its_answer() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    begins = lines.index("| Token | Status | `error` | `error_description` |") + 2
    assert lines[begins : begins + len(bad_table())] == bad_table(), "\n".join(bad_table())
