"""The table of docs/languages.md agrees with the answers of searches.

Run as a program, it writes the table's answers: `python -m tests.docs.test_languages_page`.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

from kb_engine.index.languages import language_of
from tests.support.stores import new_note, opened, prepared

PAGE = Path(__file__).parents[2] / "docs" / "languages.md"
HEAD = "| Language | Passage | Question | Found | Before |\n|---|---|---|---|---|\n"
Row = tuple[str, str, str]


def rows_of(page: str) -> list[Row]:
    """Return language, passage and question of each row."""
    lines = page.partition(HEAD)[2].splitlines()
    cells = [re.split(r" *\| *", line.strip("| ")) for line in lines if line.startswith("|")]
    return [(language, passage, question) for language, passage, question, *_ in cells]


async def found(rows: list[Row], folder: Path, *, languages: bool) -> list[bool]:
    """For each question, True if it finds its passage among the passages of all languages."""
    async with opened(folder / f"{languages}.db") as base:
        for text in dict.fromkeys(passage for _, passage, _ in rows):
            language = language_of("", [text]) if languages else None
            await base.ingest(new_note(text), prepared(text, language=language))
        answers = []
        for _, passage, question in rows:
            results = (await base.find(question, top=100)).results
            answers.append(passage in [result.chunk.text for result in results])
    return answers


async def table_of(rows: list[Row], folder: Path) -> str:
    now, before = [await found(rows, folder, languages=languages) for languages in (True, False)]
    said = {True: "yes", False: "no"}
    lines = [
        f"| {' | '.join(row)} | {said[is_found]} | {said[was_found]} |\n"
        for row, is_found, was_found in zip(rows, now, before, strict=True)
    ]
    return HEAD + "".join(lines)


async def test_the_table_says_what_searches_answer(tmp_path: Path) -> None:
    page = PAGE.read_text("utf-8")
    rows = rows_of(page)
    assert len({language for language, *_ in rows}) >= 10
    assert await table_of(rows, tmp_path) in page


if __name__ == "__main__":
    page = PAGE.read_text("utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        table = asyncio.run(table_of(rows_of(page), Path(scratch)))
    PAGE.write_text(page.partition(HEAD)[0] + table, "utf-8")
