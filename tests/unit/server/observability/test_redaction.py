"""Parts of a query that may be logged."""

from __future__ import annotations

import unicodedata
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_server.observability.redaction import MAX_CHARS, STRUCK, sanitised


@pytest.mark.requirement("R58")
@pytest.mark.parametrize(
    ("query", "logged"),
    [
        ("authentication api", "authentication api"),
        ("  how do I\n log  in? ", "how do I log in?"),
        ("mail of anna.meier@company.com please", "mail of *** please"),
        ("anna＠company.com", "***"),
        ("an\u200bna@company.com", "***"),
        ("<anna@localhost>", "***"),
        ("call +49 (0) 171 123 45 67 now", "call *** now"),
        ("call 0171/1234567", "call ***"),
        ("born 1980-01-31", "born ***"),
        ("card 4111 1111 1111 1111.", "card ***."),
        ("phone ٠١٢٣٤٥٦٧٨٩", "phone ***"),
        ("from 192.168.1.10", "from ***"),
        ("from 10.0.0.1, or 10.0.0.2", "from ***, or ***"),
        ("from fe80::1ff:fe23:4567:890a", "from ***"),
        ("IBAN DE89 3704 0044 0532 0130 00", "IBAN DE***"),
        ("https://example.com/reset?token=abc", "***"),
        ("password=hunter2", "***"),
        ("sk-proj-abcdefghijklmnopqrstuvwx", "***"),
        ("who uses AKIAIOSFODNN7EXAMPLE", "who uses ***"),
        ("authentication in postgresql17", "authentication in postgresql17"),
        ("error 404 in version 3.11", "error 404 in version 3.11"),
        ("the 5 rules of 2024", "the 5 rules of 2024"),
    ],
)
def test_personal_data_in_a_query_is_redacted(query: str, logged: str) -> None:
    assert sanitised(query) == logged


def test_a_long_query_is_cut_and_shows_it() -> None:
    assert sanitised("word " * 100) == ("word " * 40) + "…"
    assert sanitised("+49 171 1234567 " * 20 + "word " * 100) == ("*** " + "word " * 40)[:200] + "…"


@given(st.text(max_size=300), st.from_regex(r"[a-z]{1,8}@[a-z]{1,8}\.[a-z]{2,3}", fullmatch=True))
def test_an_address_between_any_words_is_never_logged(words: str, address: str) -> None:
    assert address not in sanitised(f"{words} {address} {words}")


@given(st.integers(0, 220))
def test_a_number_at_the_cut_is_not_half_logged(before: int) -> None:
    assert "12345" not in sanitised("a " * (before // 2) + "1234567890123")


@pytest.mark.parametrize("sign", ["1", "1 ", "+", "@", "(", "a-", ". ", "1....", "\ufdfa"])
def test_the_cost_of_a_query_does_not_grow_with_its_length(
    sign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its beginning is normalized, which can turn one character into eighteen."""
    normalize = unicodedata.normalize
    read: list[int] = []

    def counted(form: Literal["NFKC"], text: str) -> str:
        read.append(len(text))
        return normalize(form, text)

    monkeypatch.setattr(unicodedata, "normalize", counted)
    assert len(sanitised(sign * 100_000)) <= MAX_CHARS + 1
    assert read == [1_000]


@given(st.integers(0, 1_010), st.sampled_from(["anna.meier@company.com", "0171 123 45 67", "1234 5678 9012"]))
def test_addresses_and_numbers_at_the_end_of_the_read_text_are_redacted(before: int, secret: str) -> None:
    """Redacted words leave room in the log for later ones."""
    filling = ("x" * 30 + " ") * 40
    logged = sanitised(f"{filling[:before]} {secret} {filling}")
    assert set(logged.rstrip("…").replace(STRUCK, "").split()) <= {"x" * count for count in range(25)}


def test_a_long_redacted_query_ends_with_an_ellipsis() -> None:
    assert sanitised("x" * 2_000) == f"{STRUCK}…"
