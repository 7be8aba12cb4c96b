"""reStructuredText: sections as headings, the rest unchanged."""

from __future__ import annotations

from functools import partial

import pytest

from kb_readers.markdown import headings
from kb_readers.outlines import read_outline
from tests.support.reading import only_text, reader_of

read_rst = reader_of(read_outline, "rst")
text = partial(only_text, read_rst)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "Stones\n======\n\nOf granite.\n\nHard\n----\n\nMore\n----\n",
            "# Stones\n\nOf granite.\n\n## Hard\n\n## More\n",
        ),
        ("====\nTop\n====\n\nPart\n====\n\nDeep\n~~~~\n", "# Top\n\n## Part\n\n### Deep\n"),
        ("==========\n Centred\n==========\n", "# Centred\n"),
        ("Too long for it\n===\n", "Too long for it\n\\===\n"),
        ("A paragraph.\n\n----\n\nAnother.\n", "A paragraph.\n\n\\----\n\nAnother.\n"),
        ("# a comment of another language\n", "\\# a comment of another language\n"),
        ("::\n\n   # a comment\n   ls\n\n    # far in\n", "::\n\n   \\# a comment\n   ls\n\n    # far in\n"),
        ("```a``` b\n", "```a``` b\n"),
        ("Word\n -\n\nWord\n   ===\n", "Word\n \\-\n\nWord\n   \\===\n"),
        (".. include:: /etc/passwd\n", ".. include:: /etc/passwd\n"),
        (".. raw:: html\n\n   <script>\n", ".. raw:: html\n\n   <script>\n"),
        ("Größe\n=====\n", "# Größe\n"),
        ("", ""),
        ("=", "\\="),
        (
            "A\n=\nB\n-\nC\n~\nD\n^\nE\n\"\nF\n'\nG\n*\n",
            "# A\n## B\n### C\n#### D\n##### E\n###### F\n###### G\n",
        ),
    ],
)  # fmt: skip
def test_only_section_titles_become_headings(source: str, expected: str) -> None:
    found = text(source.encode())
    assert found == expected.rstrip("\n")
    assert len(list(headings(found))) == sum(line.startswith("#") for line in expected.split("\n"))


def test_the_first_section_of_the_first_level_is_the_title() -> None:
    assert read_rst(b"Stones\n======\n").title == "Stones"
    assert read_rst(b"no section").title is None


def test_a_large_file_takes_time_in_proportion() -> None:
    source = b"=" * 250_000 + b"\n" + b"a\n=\n" * 50_000
    assert text(source).count("# a") == 50_000
