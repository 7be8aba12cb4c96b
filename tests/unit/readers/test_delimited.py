"""CSV and TSV: rows as lines of a table, with any separator."""

from __future__ import annotations

import csv
from functools import partial
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_readers import delimited, model
from kb_readers.delimited import read_delimited, separator_of
from kb_readers.markdown import one_line
from kb_readers.model import Limits
from tests.support.reading import only_text, refusal

text = partial(only_text, read_delimited)
refused = partial(refusal, read_delimited)

STONES = "| Stone | Weight |\n| --- | --- |\n| feldspar | 12.5 |"
TWO_TABLES = """Report of May

| a | b |
| --- | --- |
| 1 | 2 |

| c | d |
| --- | --- |
| 3 | 4 |"""


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_rows_are_a_table_whatever_separates_their_values(separator: str, line_break: str) -> None:
    rows = [f"Stone{separator}Weight", f"feldspar{separator}12.5"]
    assert text(line_break.join(rows).encode()) == STONES


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param("Stone\tWeight\nfeldspar\t12.5".encode("utf-16"), STONES, id="UTF-16"),
        pytest.param(
            b"a;b\nfeldspar;12,5\nbasalt;3,0",
            "| a | b |\n| --- | --- |\n| feldspar | 12,5 |\n| basalt | 3,0 |",
            id="decimal commas",
        ),
        pytest.param(
            b'a,b\n"one, ""two""\nthree",4', '| a | b |\n| --- | --- |\n| one, "two" three | 4 |', id="quoted"
        ),
        pytest.param(
            b'a, b\n1, "one, two"\n2, "three ""3"""',
            '| a | b |\n| --- | --- |\n| 1 | one, two |\n| 2 | three "3" |',
            id="quoted after a blank",
        ),
        pytest.param(b"a,b,,\n,2,,\n", "| a | b |\n| --- | --- |\n|  | 2 |", id="empty values"),
        pytest.param(b"Report of May\n\na,b\n1,2\n\nc,d\n3,4", TWO_TABLES, id="two tables"),
        pytest.param(b"a,b|c\n1,2", "| a | b\\|c |\n| --- | --- |\n| 1 | 2 |", id="a bar in a value"),
        pytest.param(b"# bees\nkeep warm", "\\# bees\nkeep warm", id="no separator"),
        pytest.param(b"", "", id="nothing"),
        pytest.param(b"\n,\n", "", id="empty rows"),
    ],
)
def test_the_text_of_a_file(data: bytes, expected: str) -> None:
    assert text(data) == expected


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_comma_separates_least_of_equals(separator: str) -> None:
    lines = [f"Oslo, Norway{separator}1,5", f"Lima, Peru{separator}2,5"]
    assert separator_of("\n".join(f"{line}{separator}3" for line in lines)) == separator


@pytest.mark.parametrize("data", [b"a,b\n\xff,2", b"a,b\n\0,2"])
def test_a_table_that_cannot_be_decoded_is_refused(data: bytes) -> None:
    assert refused(data).code == "undecodable_text"


def test_a_table_with_too_many_columns_or_too_much_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule below the names has eight characters for each comma of the file."""
    assert "columns" in refused(b"," * delimited.MOST_COLUMNS).message
    monkeypatch.setattr(model, "DEFAULT_LIMITS", Limits(text_bytes=100))
    assert "bytes of text" in refused(b"a,b" + b"," * 20 + b"c").message


def test_a_value_longer_than_the_csv_module_takes_by_itself_is_read() -> None:
    assert text(b'a,b\n"' + b"x" * 200_000 + b'",2').endswith("x | 2 |")


VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.lists(st.lists(VALUES, min_size=2), min_size=1))
def test_no_value_of_a_written_file_is_lost(rows: list[list[str]]) -> None:
    written = StringIO(newline="")
    csv.writer(written).writerows(rows)
    if separator_of(written.getvalue()) == ",":
        read = text(written.getvalue().encode()).replace("\\|", "|")
        assert [value for row in rows for value in row if one_line(value) not in read] == []


def test_an_unclosed_quotation_mark_takes_no_further_rows() -> None:
    """Neither to the end of the file, nor to the next quotation mark."""
    rows = "".join(f"| {number} | granite |\n" for number in range(3, 50)).strip()
    plain = "".join(f"{number},granite\n" for number in range(3, 50))
    table = f'| a | b |\n| --- | --- |\n| 1 | x, y |\n| 2 | "open |\n{rows}'
    assert text(f'a,b\n1,"x, y"\n2,"open\n{plain}'.encode()) == table
    assert text(f'a,b\n1,"x, y"\n2,"open\n{plain}50,"z"\n'.encode()) == f"{table}\n| 50 | z |"
    assert text(b'a,b\n1,"x, "y"\n2,"p\nq"\n') == '| a | b |\n| --- | --- |\n| 1 | x, y" |\n| 2 | p q |'


@pytest.mark.parametrize("separator", [";", ",", "\t", "^"])
def test_a_line_for_excel_names_the_separator(separator: str) -> None:
    rows = f"sep={separator}\r\nStone, b{separator}Weight; c\r\nfeldspar{separator}12\r\n"
    if separator in ";,":
        rows = rows.replace(", b", "").replace("; c", "")
        assert text(rows.encode()) == STONES.replace("12.5", "12")
    else:
        assert text(rows.encode()) == "| Stone, b | Weight; c |\n| --- | --- |\n| feldspar | 12 |"
    assert text(rows.encode("utf-16")) == text(rows.encode())
