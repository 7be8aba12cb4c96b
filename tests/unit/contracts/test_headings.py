"""Headings of Markdown: recognition and positions."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.semantics.headings import headings


def found(text: str) -> list[tuple[int, str]]:
    return [(heading.level, heading.title) for heading in headings(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# A\n## B ##\n###### C\n", [(1, "A"), (2, "B"), (6, "C")]),
        ("   # three blanks\n    # four are code\n", [(1, "three blanks")]),
        ("#no blank\n####### seven\n#\n", [(1, "")]),
        ("# C#\n# D #\n# E ## #\n", [(1, "C#"), (1, "D"), (1, "E ##")]),
        ("Title\n=====\n\nPart\n---\r\n", [(1, "Title"), (2, "Part")]),
        ("one\ntwo\n---\n", []),
        ("text\n\n---\n\n    code\n---\n", []),
        ("- item\n---\n\n---\n\n> quote\n---\n", []),
        ("---\ntitle: x\n---\n# A\n", [(1, "A")]),
        ("---\nnever closed\n# A\n", [(1, "A")]),
        ("---\n\nA paragraph.\n\n# A\n\n---\n# B\n", [(1, "A"), (1, "B")]),
        ("+++\n# no heading\ndraft = true\n# none\n+++\n# A\n", [(1, "A")]),
        ("```sh\n# comment\n```\n# A\n", [(1, "A")]),
        ("~~~\n```\n# no\n~~~~\n# A\n", [(1, "A")]),
        ("~~~ a ~~~\n# no\n~~~\n# A\n", [(1, "A")]),
        ("````\n```\n# no\n````\n# A\n", [(1, "A")]),
        ("  ```\n# no\n   ```\n# A\n", [(1, "A")]),
        ("    ```\n# A\n    ```\n# B\n", [(1, "A"), (1, "B")]),
        ("```\n# never closed\n", []),
        ("``` inline ``` code\n# A\n", [(1, "A")]),
        ("> ```\n# A\n", [(1, "A")]),
        ("- ```\n  # no\n  ```\n\n# A\n", [(1, "A")]),
        ("10. ```sh\n    # no\n    ```\n# A\n", [(1, "A")]),
        ("- 1. ~~~\n     - ~~~\n     ~~~\n\n# A\n", [(1, "A")]),
        ("-\t```\n\t# no\n\t```\n\n# A\n", [(1, "A")]),
        ("- ```\n  never closed\n\n# A\n- ```\n\nB\n---\n", [(1, "A"), (2, "B")]),
        ("- ```\n  text\n```\n# in the next one\n```\n# A\n", [(1, "A")]),
        ("- step\n\n  ```\n  # no\n  ```\n\n# A\n", [(1, "A")]),
        ("-      ```\n# A\n", [(1, "A")]),
        ("# CRLF\r\ntext\r\n\r\nPart\r\n---\r\n", [(1, "CRLF"), (2, "Part")]),
        ("# A\n---\nx\n", [(1, "A")]),
    ],
)
def test_headings_are_found_as_markdown_has_them(text: str, expected: list[tuple[int, str]]) -> None:
    assert found(text) == expected


@given(st.text(alphabet="#=-~`> \n\rab\t\\1.", max_size=200))
def test_headings_lie_in_order_and_never_overlap(text: str) -> None:
    last = 0
    for heading in headings(text):
        assert last <= heading.start < heading.end <= len(text)
        assert 1 <= heading.level <= 6
        assert heading.title in text[heading.start : heading.end]
        last = heading.end


@pytest.mark.parametrize(
    "part", ["# ", "#", "- ", " ", "```\n", "a\n---\n", "1. ", " #", "x", "---\n", "- ```\n", "\t", "- `"]
)
def test_the_time_is_in_proportion_to_the_text(part: str) -> None:
    """For many lines and for one long line: 40 times the text takes well below 1,600 times as long."""

    def seconds(count: int) -> float:
        began = time.process_time()
        for text in (part * count, f"# {part * count}x"):
            for _ in headings(text):
                pass
        return time.process_time() - began

    few = max(min(seconds(1_000) for _ in range(3)), 5e-4)
    assert seconds(40_000) < 300 * few
