"""The reading order of recognized lines."""

from __future__ import annotations

import random

from kb_engine.extract.layout import Line, as_markdown

HEIGHT = 20.0
STEP = 30.0


def line(text: str, left: float, row: float, *, width: float = 400, certainty: float = 0.99) -> Line:
    return Line(text, certainty, left, row * STEP, left + width, row * STEP + HEIGHT)


def column(name: str, left: float, rows: range, width: float = 400) -> list[Line]:
    """A column of running text: the last line is short, the others have ragged ends."""
    return [
        line(
            f"{name}{row}", left + 3 * (row % 2), row, width=60 if row == rows[-1] else width - 9 * (row % 3)
        )
        for row in rows
    ]


def by_rows(*lines: list[Line]) -> list[Line]:
    return sorted((one for some in lines for one in some), key=lambda one: (one.top, one.left))


def read(lines: list[Line]) -> list[str]:
    return [text for text in as_markdown(lines).split("\n") if text]


def names(name: str, rows: range) -> list[str]:
    return [f"{name}{row}" for row in rows]


def test_lines_of_low_certainty_are_dropped() -> None:
    lines = [
        line("The granite quarry", 0, 0),
        line("0pqns", 0, 1, certainty=0.5),
        line("opens at seven", 0, 2),
    ]
    assert read(lines) == ["The granite quarry", "opens at seven"]


def test_pieces_of_a_row_are_one_line_unless_two_heights_lie_between_them() -> None:
    assert read([line("Total", 0, 0), line("12.50", 439, 0)]) == ["Total 12.50"]
    assert read([line("Total", 0, 0), line("12.50", 440, 0)]) == ["Total", "12.50"]


def test_columns_are_read_one_after_the_other() -> None:
    rows = range(2, 12)
    page = by_rows([line("Headline", 100, 0, width=700)], column("a", 0, rows), column("b", 440, rows))
    assert read(page) == ["Headline", *names("a", rows), *names("b", rows)]


def test_a_narrow_gutter_does_not_join_lines_of_two_columns() -> None:
    rows = range(10)
    page = by_rows(column("a", 0, rows), column("b", 400 + HEIGHT, rows))
    assert read(page) == [*names("a", rows), *names("b", rows)]


def test_three_columns() -> None:
    rows = range(6)
    page = by_rows(column("a", 0, rows), column("b", 440, rows), column("c", 880, rows))
    assert read(page) == [*names("a", rows), *names("b", rows), *names("c", rows)]


def test_a_line_across_the_columns_separates_them() -> None:
    upper, lower = range(6), range(9, 15)
    page = by_rows(
        column("a", 0, upper),
        column("b", 440, upper),
        [line("Between", 50, 7, width=750)],
        column("c", 0, lower),
        column("d", 440, lower),
    )
    expected = [*names("a", upper), *names("b", upper), "Between", *names("c", lower), *names("d", lower)]
    assert read(page) == expected


def test_paragraphs_and_headings_of_a_column_stay_in_it() -> None:
    left = [*column("a", 0, range(5)), line("Heading", 0, 7, width=150), *column("c", 0, range(9, 15))]
    right = column("b", 440, range(15))
    expected = [*names("a", range(5)), "Heading", *names("c", range(9, 15)), *names("b", range(15))]
    assert read(by_rows(left, right)) == expected


def test_a_table_is_read_row_by_row() -> None:
    draw = random.Random(5)
    cells = [
        [line(f"{name}{row}", left, row, width=draw.uniform(60, 380)) for row in range(12)]
        for name, left in (("name", 0.0), ("place", 450.0))
    ]
    assert read(by_rows(*cells)) == [text for row in range(12) for text in (f"name{row}", f"place{row}")]


def test_labels_and_numbers_are_read_row_by_row() -> None:
    labels = [line(f"item {row}", 0, row, width=300) for row in range(8)]
    numbers = [line(f"{row}.50", 700, row, width=60) for row in range(8)]
    assert read(by_rows(labels, numbers)) == [
        text for row in range(8) for text in (f"item {row}", f"{row}.50")
    ]


def test_pieces_of_a_row_are_one_line() -> None:
    pieces = [
        line("Opening", 0, 0, width=100),
        line("hours", 110, 0, width=80),
        line("Monday", 0, 3, width=100),
    ]
    assert as_markdown(pieces) == "Opening hours\n\nMonday"
