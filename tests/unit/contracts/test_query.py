"""Parsing of queries, and the chunks that match one."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import MAX_QUERY_CHARS, SearchRequest
from kb_contracts.semantics.query import ParsedQuery, Wording, parse_query, words_of
from kb_contracts.semantics.search import query_of

Read = tuple[str, tuple[str, ...], tuple[str, ...]]
WORD = st.text(string.ascii_lowercase, min_size=3, max_size=8)
WORDS = st.lists(WORD, min_size=1, max_size=6)


def read(query: str) -> Read:
    """Return the text to rank by, the phrases and the exclusions."""
    parsed = parse_query(query)
    wording = parsed.wording or Wording()
    return parsed.text, wording.phrases, wording.excluded


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ('"connection reset"', ("connection reset", ("connection reset",), ())),
        ('why "old car" by "a river"?', ("why old car by a river ?", ("old car", "a river"), ())),
        ("„so“ «etwas» “here” ”there”", ("so etwas here there", ("so", "etwas", "here", "there"), ())),
        ('“a "b" c”', ('a "b" c', ('a "b" c',), ())),
        ("jaguar -car", ("jaguar", (), ("car",))),
        ("-car jaguar, -Über.", ("jaguar, .", (), ("car", "Über"))),
        ('jaguar -"sports car" -“old” -cars', ("jaguar", (), ("sports car", "old", "cars"))),
        ('"jaguar"-"car"', ("jaguar - car", ("jaguar", "car"), ())),
        ('jaguar "black -cat"', ("jaguar black -cat", ("black -cat",), ())),
        ('--"car" x', ("-- car x", ("car",), ())),
        ('x\n-"old car" -car', ("x\n- old car -car", ("old car",), ())),
        ("  x -car \n", ("x", (), ("car",))),
        ("豹 -汽车们", ("豹", (), ("汽车们",))),
        ("हाथी -हिन्दी", ("हाथी", (), ("हिन्दी",))),
    ],
)  # fmt: skip
def test_a_query_is_phrases_exclusions_and_words(query: str, expected: Read) -> None:
    assert read(query) == expected


@pytest.mark.parametrize(
    ("query", "words"),
    [('one two "a b" three -four five "c d" six', 5), ('in "a b", of the 机器学习 -"c d" -word', 5)],
)
def test_phrases_are_conditions_beside_few_words(query: str, words: int) -> None:
    """Words of phrases and exclusions do not count; two letters of a script without spaces are a word."""
    parsed = parse_query(query, words)
    assert parsed.wording is not None
    assert (parsed.preferred, parsed.wording.phrases[:1]) == (None, ("a b",))
    longer = parse_query(query, words - 1)
    assert longer.preferred is not None
    assert longer.preferred.phrases == parsed.wording.phrases
    assert longer.wording is not None
    assert (longer.wording.phrases, longer.wording.excluded) == ((), parsed.wording.excluded)
    assert longer.text == parsed.text


@pytest.mark.parametrize(
    "query",
    [
        '5" pipe', '5" and 3" pipes', 'a "', '"" x', '" - " x', "«x", "x»", "“ „", "'single'", "`code`",
        "a-b", "5 - 3", "- item", "-5 -273 degrees", "--flag", "git log --oneline -n 5", "tar -xzf a -C b",
        "ls -la -rf", "-x", "x -foo-bar", "x -foo=1", "x -foo_bar", "x -3com", "x -foo/bar", "gcc -Wall -O2",
        "find -name -v", "grep -rn word", "+new\n-old", "a\r\n-old", "a (-old)", "a/-old", "−old", "–old new",
    ],
)  # fmt: skip
def test_a_query_without_query_syntax_is_plain_text(query: str) -> None:
    assert parse_query(query) == ParsedQuery(query, None)


@pytest.mark.parametrize("query", ["-car", ' -"old car" ', '"" -car', "? -car", "-car -old -new"])
def test_a_query_that_only_excludes_is_refused(query: str) -> None:
    with pytest.raises(EngineError) as refused:
        parse_query(query)
    assert (refused.value.code, refused.value.members) == ("invalid_parameter", {"parameter": "query"})


@given(st.text(max_size=MAX_QUERY_CHARS) | st.text('"“”„«»- \n\tab5.\0\ud800机', max_size=MAX_QUERY_CHARS))
@example('"' * MAX_QUERY_CHARS)
@example(' -"a' * (MAX_QUERY_CHARS // 4))
def test_any_text_is_read(query: str) -> None:
    """It is parsed into words of the query, or refused."""
    try:
        parsed = parse_query(query)
    except EngineError:  # the code is tested above
        return
    assert len(parsed.text) <= len(query)
    assert not set(parsed.text) - set(query) - {" "}
    if parsed.wording is None:
        assert parsed.text == query
    else:
        assert all(map(words_of, (*parsed.wording.phrases, *parsed.wording.excluded)))
        parsed.wording.passes(query, None, parsed.text)


@given(st.text(st.characters(exclude_characters='"“”„«-', codec=None)))
def test_a_plain_query_is_parsed_unchanged(query: str) -> None:
    if query:
        assert query_of(SearchRequest(query=query)) == parse_query(query) == ParsedQuery(query)


@given(WORDS, WORDS, WORDS)
def test_phrases_and_exclusions_are_read_as_written(
    words: list[str], phrase: list[str], excluded: list[str]
) -> None:
    row = " ".join(phrase)
    query = " ".join([*words, f'"{row}"', *(f"-{word}" for word in excluded)])
    assert read(query) == (" ".join([*words, row]), (row,), tuple(excluded))


@given(WORDS, st.data())
def test_a_passage_contains_each_phrase_cut_out_of_it(words: list[str], data: st.DataObject) -> None:
    """The separators between words do not matter; with the phrase excluded, the text does not pass."""
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    phrase = " ".join(words[first : last + 1]).upper()
    between = st.sampled_from([" ", ", ", "-", "\n", "_", "»"])
    text = "".join(word + data.draw(between) for word in words)
    assert Wording([phrase]).passes("", None, text)
    assert not Wording([], [phrase]).passes("", None, text)


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("Connection RESET", "connection\u00a0—  reset"),
        ("Straße", "STRASSE"),
        ("strasse", "Straße"),
        ("cafe", "café"),
        ("ışık kirliliği", "Işık kirliliği"),
        ("café", "cafe\u0301"),
        ("file", "ﬁle"),
        ("full", "ｆｕｌｌ"),
        ("don't", "don’t"),
        ("hyphenated", "hyphen\u00adated"),
        ("کتاب", "کِتاب"),
        ("हिन्दी में", "यह हिन्दी में है"),
        ("学习", "机器学习的方法"),
        ("ภาษา", "ภาษาไทย"),
        ("한국", "한국어"),
        ("a_b", "a b"),
    ],
)
def test_a_phrase_is_found_in_other_spellings(phrase: str, text: str) -> None:
    assert Wording([phrase]).passes("", None, text)


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("connection", "connections"),
        ("reset connection", "connection reset"),
        ("one two", "one and two"),
        ("が", "か"),
        ("学习", "学不习"),
        ("ab", "a b"),
    ],
)
def test_a_phrase_is_not_found_in_other_words(phrase: str, text: str) -> None:
    assert not Wording([phrase]).passes("", None, text)


def test_a_phrase_stands_in_title_heading_or_text_each_by_itself() -> None:
    wording = Wording(["old mine"])
    assert wording.passes("an old mine", None, "slate")
    assert wording.passes("slate", "The old mine", "slate")
    assert not wording.passes("old", "mine", "slate")
    assert not wording.passes("slate", "old", "mine")


@pytest.mark.parametrize("phrase", ["a " * 1_999, "a, " * 1_300, "x" * 4_000])
def test_long_phrases_are_looked_for_in_a_time_in_proportion(phrase: str) -> None:
    """A text with many near matches: backtracking at each position would take minutes."""
    wording = Wording([f"{phrase}b"], [f"{phrase}c"])
    assert not wording.passes("a " * 100_000, None, f"{phrase[:-3]} " * 200)
