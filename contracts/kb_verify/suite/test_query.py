"""Promises on the syntax of a query: phrases in quotation marks, and exclusions behind a minus."""

from __future__ import annotations

import pytest

from kb_contracts.api import operations as ops
from kb_verify.client import Client

MODES = pytest.mark.parametrize("mode", ["hybrid", "fts", "vector"])
RESET = "The connection was reset by a peer; a peer resets a connection."


SIX_WORDS = "what did the log say about"


def searched(kb: Client, query: str, mode: str = "hybrid", *, strict: bool = False) -> set[int]:
    found = kb.search(query, mode=mode, top=100, strict=strict).results
    return {result.document.id for result in found}


@MODES
def test_only_what_holds_the_phrase_is_a_result(kb: Client, mode: str) -> None:
    """The separate words do not suffice, regardless of their number."""
    wanted = kb.note("Errno 104: connection reset by peer, said the log.", title="Log")
    kb.note(RESET, title="Sockets")
    assert searched(kb, '"connection reset by peer"', mode) == {wanted}
    assert len(searched(kb, "connection reset by peer", mode)) == 2


@pytest.mark.parametrize(
    "text",
    ["CONNECTION  Reset\nby (peer).", "connection-reset, by: peer", "cónnéction ﬁnds; réset by ｐｅｅｒ"],
)
def test_a_phrase_is_found_whatever_its_case_accents_and_punctuation(kb: Client, text: str) -> None:
    wanted = kb.note(text, title="Log")
    query = '"connection finds reset by peer"' if "ﬁ" in text else '"connection reset by peer"'
    assert searched(kb, query, strict=True) == {wanted}


@pytest.mark.parametrize(
    "text",
    [
        "peer reset by connection",
        "connections reset by peer",
        "a misconnection reset by peers",
        "connection reset by the peer",
        "connection",
    ],
)
def test_words_of_a_phrase_stand_in_its_order_side_by_side_and_whole(kb: Client, text: str) -> None:
    kb.note(text, title="Log")
    assert searched(kb, '"connection reset by peer"', strict=True) == set()


def test_a_phrase_may_stand_in_the_title_or_in_a_heading(kb: Client) -> None:
    """In either by itself: a phrase does not begin in the title and end in the text."""
    titled = kb.note("Slate was carried uphill.", title="The granite quarry")
    headed = kb.file("a.md", b"# The granite quarry\n\nSlate was carried downhill.", title="Slate")
    kb.note("quarry of slate", title="Granite")
    assert searched(kb, 'slate "granite quarry"') == {titled, headed}


@pytest.mark.parametrize("marks", ['""', "“”", "„“", "„”", "””", "«»"])
def test_a_phrase_stands_between_double_quotation_marks_of_any_kind(kb: Client, marks: str) -> None:
    wanted = kb.note("the granite quarry", title="Stone")
    kb.note("a quarry of granite", title="More stone")
    assert searched(kb, f"{marks[0]}granite quarry{marks[1]}") == {wanted}


@pytest.mark.parametrize(
    "query", ['5" granite pipe', 'granite "', 'granite "" "-"', "granite “pipe", "granite» pipe"]
)
def test_an_unpaired_mark_is_plain_text(kb: Client, query: str) -> None:
    wanted = kb.note("granite", title="Stone")
    assert searched(kb, query, strict=True) == {wanted}


def test_a_passage_holds_all_phrases(kb: Client) -> None:
    both = kb.note("the granite quarry above a slate mine", title="Both")
    kb.note("the granite quarry above a mine of slate", title="One")
    kb.note("a slate mine", title="The other one")
    assert searched(kb, '"granite quarry" near a "slate mine"') == {both}


def test_a_phrase_is_found_inside_a_sentence_without_spaces(kb: Client) -> None:
    wanted = kb.note("granite: 我们研究机器学习的方法", title="一")
    kb.note("granite: 机器不学习", title="二")
    assert searched(kb, 'granite "机器学习"') == {wanted}


@MODES
def test_what_holds_an_excluded_word_is_no_result(kb: Client, mode: str) -> None:
    """Whole words are compared, without stemming."""
    kb.note("granite for a lantern", title="Copper")
    kb.note("a granite lantern, and copper", title="Metal")
    left = {
        kb.note("a granite lantern", title="Stone"),
        kb.note("a granite lantern of coppers", title="Coins"),
    }
    assert searched(kb, "granite lantern -copper", mode) == left
    assert searched(kb, "-COPPER granite lantern", mode) == left
    assert len(searched(kb, "granite lantern copper", mode)) == 4


def test_what_holds_an_excluded_phrase_is_no_result(kb: Client) -> None:
    kb.note("granite from the old quarry", title="Old")
    other = kb.note("granite from an old, old mine and no quarry", title="Mine")
    assert searched(kb, 'granite -"old quarry"') == {other}
    assert searched(kb, "granite -“old quarry”") == {other}


@pytest.mark.parametrize(
    "query",
    [
        "granite a-copper", "granite 5 - copper", "- copper granite", "granite --copper", "granite -c copper",
        "granite copper -rf", "granite -copper --all", "granite\n-copper", "granite -104", "granite x-copper",
        "granite (-copper)", "granite -copper=1", "granite/-copper", 'granite copper-"quarry"',
    ],
)  # fmt: skip
def test_a_minus_of_another_kind_excludes_nothing(kb: Client, query: str) -> None:
    """Options, numbers, lists, diffs: pasted text is searched for."""
    wanted = kb.note("granite with copper, 104 tons of it: the quarry", title="Stone")
    if '"' not in query:
        assert searched(kb, query, "fts") == {wanted}
    assert searched(kb, query, "hybrid") == {wanted}


@MODES
def test_words_of_phrases_count_and_excluded_words_do_not(kb: Client, mode: str) -> None:
    """Scores are those of the same words without quotation marks, or without the exclusion."""
    document = kb.note("granite quarry by the river", title="Stone")

    def score(query: str) -> float:
        (result,) = kb.search(query, mode=mode).results
        assert result.document.id == document
        return result.score

    assert score('"granite quarry" river') == pytest.approx(score("granite quarry river"), abs=1e-6)
    assert score("granite -copper river") == pytest.approx(score("granite river"), abs=1e-6)


@MODES
def test_the_total_counts_what_passes(kb: Client, mode: str) -> None:
    for number in range(3):
        kb.note(f"granite quarry report {number}", title=f"Report {number}")
    kb.note("granite report of a quarry", title="Others")
    answer = kb.search('"granite quarry" report', mode=mode, top=2)
    assert len(answer.results) == 2
    assert answer.total == 3 or (answer.total_exact is False and 2 <= answer.total <= 3)
    answer = kb.search("granite quarry report -others", mode=mode, top=2)
    assert len(answer.results) == 2
    assert answer.total == 3 or (answer.total_exact is False and 2 <= answer.total <= 3)


@MODES
def test_where_nothing_passes_the_answer_is_weak(kb: Client, mode: str) -> None:
    kb.note("copper lantern in the harbour office", title="Lantern")
    answer = kb.search('copper lantern in the "office harbour"', mode=mode, strict=True)
    assert (answer.results, answer.total, answer.weak) == ([], 0, True)
    assert not kb.search('"copper lantern in the harbour office"', mode=mode).weak


@MODES
def test_beside_more_than_six_words_a_phrase_excludes_nothing(kb: Client, mode: str) -> None:
    """Quotation marks of pasted text. Exclusions do not count, and exclude at any length."""
    wanted = kb.note("what the log did say: connection reset by peer", title="Log")
    other = kb.note("what did the log say about connection, peer and reset", title="Peers")
    kb.note("what did the log say about copper", title="Copper")
    phrase = '"connection reset by peer" -copper'
    assert searched(kb, f"{SIX_WORDS} {phrase}", mode) == {wanted}
    assert searched(kb, f"{SIX_WORDS} the {phrase}", mode) == {wanted, other}
    assert searched(kb, f"{SIX_WORDS} the {phrase}", mode, strict=True) == {wanted}


@MODES
def test_beside_more_than_six_words_a_phrase_raises_the_score(kb: Client, mode: str) -> None:
    for text in ("peer by reset connection", "connection reset by peer"):
        kb.note(f"the log: {text}", title="Log")
    query = f"{SIX_WORDS} the connection reset by peer"
    before = {each.chunk.id: each.score for each in kb.search(query, mode=mode).results}
    quoted = query.replace("connection reset by peer", '"connection reset by peer"')
    with_phrase, without = kb.search(quoted, mode=mode, explain=True).results
    assert "connection reset" in with_phrase.chunk.text
    first = before[with_phrase.chunk.id]
    assert with_phrase.score == pytest.approx(first + 0.1 * (1 - first), abs=1e-5)
    assert without.score == pytest.approx(before[without.chunk.id], abs=1e-5)
    assert [each.explain.phrases for each in (with_phrase, without) if each.explain] == [1, 0]


@MODES
def test_where_no_passage_holds_a_phrase_the_best_without_it_follow_marked(kb: Client, mode: str) -> None:
    wanted = kb.note("copper lantern in the harbour office", title="Lantern")
    kb.note("copper lantern of tin", title="Tin")
    query = 'copper lantern in the "office harbour" -tin'
    answer = kb.search(query, mode=mode)
    (result,) = answer.results
    assert (result.document.id, result.without_phrase) == (wanted, True)
    assert (answer.total, answer.weak) == (0, True)
    (held,) = kb.search('"harbour office"', mode=mode).results
    assert held.without_phrase is not True


def test_further_pages_without_a_phrase_are_marked(kb: Client) -> None:
    for number in range(2):
        kb.note(f"copper lantern {number}", title=f"Lantern {number}")
    query = '"lantern copper"'
    first = kb.search(query, top=1, pages=True)
    second = kb.search(query, top=1, pages=True, cursor=first.next_cursor)
    assert [each.without_phrase for each in (*first.results, *second.results)] == [True, True]


def test_phrases_go_with_filters_and_bounds(kb: Client) -> None:
    wanted = kb.note("the granite quarry in spring", title="Spring", tags=["a"])
    kb.note("the granite quarry in autumn", title="Autumn")
    kb.note("spring in a quarry of granite", title="Springs", tags=["a"])
    answer = kb.search(
        '"granite quarry" spring', tags=["a"], collapse=True, per_document=1, explain=True, ranking={}
    )
    (result,) = answer.results
    assert result.document.id == wanted
    assert result.explain is not None
    assert kb.search('"granite quarry" spring', tags=["a"], min_score=1.0, mode="fts").results == []


@pytest.mark.parametrize("query", ["-copper", '-"granite quarry"', "-copper -tin.", '"" -copper'])
def test_a_query_that_only_leaves_out_is_refused(kb: Client, query: str) -> None:
    kb.note("granite", title="Stone")
    kb.refused("invalid_parameter", ops.SEARCH, json={"query": query}, parameter="query")


HOSTILE = [
    '"' * 4_000,
    "“" * 4_000,
    "„“" * 2_000,
    '"a" ' * 1_000,
    f"x{' -abc' * 799}",
    "x" + ' -"a b"' * 571,
    f'"{"a " * 1_999}"',
    f'"{"granite, " * 444}"',
    f'"{"(" * 3_997}a"',
    "-" * 4_000,
    " -a" * 1_333,
    '"a\0b" \0-abc\0',
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_query_is_answered(kb: Client, number: int) -> None:
    """Thousands of marks, phrases and exclusions are parsed and compared like any query."""
    kb.note("granite " * 300, title="Stone")
    assert kb.search(HOSTILE[number]).took_ms < 10_000
