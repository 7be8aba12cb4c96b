"""Chunks: correct offsets, headings, pages, tokens, and linear time."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_engine.chunk import CHUNK_CHARS, PAGE_BREAK, chunks
from kb_engine.store.port import PreparedChunk
from kb_readers.model import Extraction, Page

PLAIN, MARKDOWN = "text/plain", "text/markdown"
PIECES = st.sampled_from([
    "word ", "longword" * 12, "日本語のテキスト。", "한국어 ", "👨\u200d👩\u200d👦", "e\u0301",
    "\n", "\n\n", "\r\n", "# h\n", "## h2\r\n", "```\n", "- item\n", "| a | b |\n", "---\n", "*x*",
    "| --- | --- |\n", " ", "\t", "\u00a0", "\u2003", "\x1c", "\u3000", "\ufeff",
])  # fmt: skip
TEXTS = st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=80).map("".join))


def made(*pages: str, mime_type: str = MARKDOWN) -> Extraction:
    """An extraction of these pages, numbered if there are several."""
    numbered = [Page(n if len(pages) > 1 else None, text) for n, text in enumerate(pages, start=1)]
    return Extraction(numbered, None, "text_extraction", mime_type)


def chunked(extraction: Extraction, **options: Any) -> list[PreparedChunk]:
    return list(chunks(extraction, **options))


@given(
    pages=st.lists(TEXTS, max_size=4),
    mime_type=st.sampled_from([PLAIN, MARKDOWN]),
    capacity=st.integers(1, 200),
    max_tokens=st.integers(1, 50),
)
def test_every_offset_points_at_its_text(
    pages: list[str], mime_type: str, capacity: int, max_tokens: int
) -> None:
    """Chunks are in order, never blank, on one page, within capacity and tokens.

    No text is repeated, and only the rules of tables are lost.
    """
    extraction = made(*pages, mime_type=mime_type)
    chunks = chunked(extraction, capacity=capacity, count_tokens=len, max_tokens=max_tokens)
    text = PAGE_BREAK.join(pages)
    assert all(a.end <= b.start for a, b in pairwise(chunks))
    starts = page_starts(pages)
    for each in chunks:
        assert text[each.start : each.end] == each.text == each.text.strip() != ""
        assert each.tokens == len(each.text) <= min(capacity + capacity // 10, max_tokens)
        page = next(n for n in range(len(pages), 0, -1) if starts[n - 1] <= each.start)
        assert each.end <= starts[page - 1] + len(pages[page - 1])
        assert each.page == (page if len(pages) > 1 else None)
    assert without_rules("".join(each.text for each in chunks)) == without_rules(text)


def without_rules(text: str) -> str:
    return "".join(text.translate(dict.fromkeys(map(ord, "|:-"))).split())


def page_starts(pages: list[str]) -> list[int]:
    starts, at = [], 0
    for page in pages:
        starts.append(at)
        at += len(page) + 2
    return starts


def test_a_document_without_text_has_no_chunks() -> None:
    assert chunked(made()) == []
    assert chunked(made("", "", " \n\t\r\n ")) == []


def test_a_short_document_is_one_chunk() -> None:
    assert chunked(made("\n\n A note. \n", mime_type=PLAIN)) == [
        PreparedChunk("A note.", None, None, 3, 10, 0)
    ]


def trail_of(*pages: str, capacity: int = 80) -> list[tuple[str, str | None]]:
    return [(each.text.splitlines()[0], each.heading) for each in chunked(made(*pages), capacity=capacity)]


def test_a_chunk_knows_the_headings_above_it() -> None:
    filler = "word " * 10
    text = (
        f"intro {filler}\n# Guide\n## Install\n{filler}\n\nmore {filler}\n## Use\n{filler}\n# Other\n{filler}"
    )
    assert trail_of(text) == [
        (f"intro {filler}".strip(), None),
        ("# Guide", "Guide > Install"),
        (f"more {filler}".strip(), "Guide > Install"),
        ("## Use", "Guide > Use"),
        ("# Other", "Other"),
    ]


def test_headings_go_on_over_pages_and_chunks_do_not() -> None:
    """A section may fill many pages."""
    assert trail_of("# A\n## B", "text of the second page", "## C\ntext", "") == [
        ("# A", "A > B"),
        ("text of the second page", "A > B"),
        ("## C", "A > C"),
    ]


def test_a_mark_in_a_fence_is_no_heading() -> None:
    text = f"# Real\n\n```sh\n# comment\n{'command ' * 20}\n```\n"
    assert {each.heading for each in chunked(made(text), capacity=60)} == {"Real"}
    assert {each.heading for each in chunked(made(text, mime_type=PLAIN), capacity=60)} == {None}


def test_a_heading_is_never_alone_before_its_text() -> None:
    """It joins the text after it, and may exceed the capacity by a tenth."""
    long = "word " * 39 + "end"
    chunks = chunked(made(f"# Title\n\n{long}\n\n## Part\n\n{long}"), capacity=200)
    assert [each.text.splitlines()[0] for each in chunks] == ["# Title", "## Part"]


def test_a_breadcrumb_is_bounded_whatever_the_heading() -> None:
    text = "\n".join(f"{'#' * level} {'x' * 50_000}" for level in range(1, 7)) + "\n\ntext"
    assert max(len(each.heading or "") for each in chunked(made(text))) < 1300


ACCOUNTS = "| No | Name | Opening | Closing |\n| --- | --- | --- | --- |\n"
ROWS = "".join(f"| {number} | Customer {number} | {3 * number} | {5 * number} |\n" for number in range(1, 60))


def test_a_passage_within_a_table_has_the_header_row_below_its_headings() -> None:
    """Also in the chunk where the table ends, but not in the chunk with the names, or after the table."""
    after = "word " * 30
    chunks = chunked(made(f"# Accounts\n\n{ACCOUNTS}{ROWS}\n{after}\n\n## More\n\n{after}"), capacity=200)
    headings = [each.heading for each in chunks]
    rows = sum(each.text.startswith("|") for each in chunks)
    assert rows > 8
    assert headings[0] == "Accounts"
    assert set(headings[1 : rows + 1]) == {"Accounts\n| No | Name | Opening | Closing |"}
    assert headings[rows + 1 :] == ["Accounts", "Accounts > More"]


@pytest.mark.parametrize(
    ("header", "heading"),
    [
        pytest.param("| a\\|b |  | c |", "\n| a\\|b | | c |", id="an escaped bar and no name"),
        pytest.param("a | b", "\n| a | b |", id="no bars at the ends"),
        pytest.param("|  |  |", None, id="no names"),
        pytest.param(f"| {'long ' * 100} | b |", f"\n| {'long ' * 79}long… |", id="cut at a bound"),
    ],
)
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_the_names_of_columns_are_those_above_the_rule(
    header: str, heading: str | None, line_break: str
) -> None:
    text = line_break.join(["text", "", header, "|:--|--:|", *ROWS.splitlines()])
    assert chunked(made(text), capacity=200)[-1].heading == heading


def test_a_passage_within_a_row_has_the_names_from_its_column_on() -> None:
    names = " | ".join(f"name {column}" for column in range(40))
    values = " | ".join(f"value\\|{column}" for column in range(40))
    for lead in ("", "| "):
        rows = names, "|".join(["---"] * 40), values
        chunks = chunked(made("\n".join(f"{lead}{row}" for row in rows)), capacity=150)
        begin = [each for each in chunks if each.text.lstrip("| ").startswith("value")]
        assert len(begin) > 3
        for each in begin:
            column = each.text.split()[each.text.startswith("|")].partition("|")[2]
            assert (each.heading or "").startswith(f"\n| name {column} | ")


def test_of_a_passage_far_within_a_row_the_columns_are_not_known() -> None:
    text = f"{ACCOUNTS}| {'word ' * 10_000} | last |"
    headings = [each.heading for each in chunked(made(text))]
    assert headings[1:3] == ["\n| No | Name | Opening | Closing |"] * 2
    assert headings[-1] is None


def test_each_table_has_names_of_its_own() -> None:
    text = f"{ACCOUNTS}{ROWS}\n| Town | Size |\n| --- | --- |\n{ROWS}"
    chunks = chunked(made(text), capacity=200)
    names = list(dict.fromkeys(each.heading for each in chunks if each.text.startswith("| ")))
    assert names == [None, "\n| No | Name | Opening | Closing |", "\n| Town | Size |"]


def test_a_row_of_dashes_is_no_rule_below_another_row() -> None:
    text = f"{ACCOUNTS}| 1 | Customer 1 | 3 | 5 |\n| - | - | - | - |\n{ROWS}"
    assert chunked(made(text), capacity=200)[-1].heading == "\n| No | Name | Opening | Closing |"


def test_plain_text_has_no_tables() -> None:
    assert {each.heading for each in chunked(made(ACCOUNTS + ROWS, mime_type=PLAIN), capacity=200)} == {None}


def test_the_rule_of_a_table_is_no_passage_of_its_own() -> None:
    """It is joined to its neighbours, or left out."""
    header = " | ".join(f"Result number {column}" for column in range(40))
    row = " | ".join(f"{column} mmol" for column in range(40))
    for columns in (12, 40, 400):
        text = f"| {header} |\n|{' --- |' * columns}\n| {row} |\n"
        chunks = chunked(made(text), capacity=200, count_tokens=len, max_tokens=150)
        assert all(each.text.strip("|- ") for each in chunks)
        assert without_rules("".join(each.text for each in chunks)) == without_rules(text)


def test_a_part_of_a_table_leaves_room_for_the_names_of_its_columns() -> None:
    chunks = chunked(made(ACCOUNTS + ROWS), count_tokens=len, max_tokens=200)
    assert {each.tokens + len(each.heading or "") <= 200 for each in chunks} == {True}
    assert [each.heading for each in chunks].count(None) == 1


@pytest.mark.parametrize("mime_type", [PLAIN, MARKDOWN])
def test_prose_fills_its_chunks(mime_type: str) -> None:
    """Sentences stay whole, and no chunk is short because of the way the text is processed."""
    text = "The quick brown fox jumps over the lazy dog. " * 4000
    chunks = chunked(made(text, mime_type=mime_type))
    assert all(each.text.endswith(".") for each in chunks)
    assert min(len(each.text) for each in chunks[:-1]) > CHUNK_CHARS * 0.9


def test_a_chunk_over_the_tokens_is_cut_further() -> None:
    """In Chinese, for example, each character is a token; chunks that fit are unchanged."""
    chinese = "天地玄黄宇宙洪荒。" * 100
    chunks = chunked(
        made(f"{'plain words ' * 20}\n\n{chinese}"), count_tokens=words_or_characters, max_tokens=100
    )
    assert all(words_or_characters(each.text) <= 100 for each in chunks)
    assert len(chunks[0].text) > 100
    assert "".join(each.text for each in chunks[1:]) == chinese


def words_or_characters(text: str) -> int:
    return sum(1 if word.isascii() else len(word) for word in text.split())


def test_a_character_of_too_many_tokens_is_left_whole() -> None:
    assert [each.text for each in chunked(made("ab"), count_tokens=lambda text: 9, max_tokens=1)] == [
        "a",
        "b",
    ]


LARGE: dict[str, Callable[[int], str]] = {
    "no blanks": lambda n: "a" * (10 * n),
    "newlines": lambda n: "\n" * (10 * n),
    "blanks": lambda n: " " * (10 * n),
    "marked headings": lambda n: "".join(f"# h{i}\n" for i in range(n)),
    "underlined headings": lambda n: "".join(f"h{i}\n---\n" for i in range(n)),
    "emoji": lambda n: "👨\u200d👩\u200d👦" * n,
    "backticks": lambda n: "`" * (10 * n),
    "fences": lambda n: "```\n" * n,
    "bullets": lambda n: "- " * n,
    "runs of newlines": lambda n: "".join("\n" * (i % 40) + "x" for i in range(n // 4)),
    "tables": lambda n: "| a | b |\n| - | - |\n\n" * (n // 4),
    "rows of dashes": lambda n: "| a |\n" + "| - |\n" * n,
    "a wide table": lambda n: f"|{' a |' * n}\n|{' - |' * n}\n|{' b |' * n}",
    "front matter": lambda n: "---\n" + "a: b\n" * n,
}


@pytest.mark.parametrize("mime_type", [PLAIN, MARKDOWN])
@pytest.mark.parametrize("kind", LARGE)
def test_no_text_takes_more_than_its_share_of_time(kind: str, mime_type: str) -> None:
    """Eight times the text takes about eight times as long; quadratic time would take 64 times."""
    small, large = (made(LARGE[kind](n), mime_type=mime_type) for n in (1_250, 10_000))
    chunked(small)
    most = 30 * min(seconds_for(small) for _ in range(3)) + 0.03
    assert any(seconds_for(large) < most for _ in range(3))


def seconds_for(extraction: Extraction) -> float:
    start = time.process_time()
    chunked(extraction)
    return time.process_time() - start
