"""Identifiers are found as a whole, and words in any form of their letters, in every index."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_engine.index.words import MAX_IDENTIFIERS, Analyser, identifiers, is_identifier, plain, weigh_words
from kb_engine.store.repository import documents
from tests.support.stores import Base, new_note, prepared

EXACT = [
    ("KB_EMBEDDER", "set KB_EMBEDDER to minilm", "kb, kb and kb: an embedder for the embedder of kb"),
    ("kb_engine.index.port", "see kb_engine.index.port.", "the index of the kb engine, a port, an index"),
    ("C++", "written in C++, mostly", "c, or C, as c was before c"),
    (".NET", "runs on .NET", "a net, the net, nets"),
    ("foo_bar", "a foo_bar there", "foo, foo and bar, bar or foo"),
    ("192.168.0.1", "at 192.168.0.1", "168 of 192, 0 of 1, 1 of 192"),
    ("user@example.com", "ask user@example.com", "an example: the user of com, com user example"),
    ("CVE-2024-3094", "about CVE-2024-3094:", "cve of 2024, 3094 cve in 2024"),
    ("git commit --no-verify", "git commit --no-verify", "git: no commit; verify no commit, git verify"),
    ("/etc/passwd", "read /etc/passwd", "passwd etc, etc and passwd"),
    ("v2.3.1", "since v2.3.1", "v2 of 3, 1 of v2"),
]  # fmt: skip


async def add(base: Base, text: str) -> None:
    await base.ingest(new_note(text, title="-"), prepared(text, title="-"))


async def test_the_passage_with_the_whole_identifier_is_first(embedded: Base) -> None:
    for query, exact, scattered in EXACT:
        for text in (scattered, exact, "basalt columns"):
            await add(embedded, text)
        texts = [result.chunk.text for result in (await embedded.find(query)).results]
        assert texts == [exact, scattered], query
        await embedded.store.once(None, documents.clear)


async def test_an_identifier_is_found_by_its_parts(base: Base) -> None:
    await add(base, "set KB_EMBEDDER to minilm")
    await add(base, "basalt columns")
    assert (await base.find("embedder")).total == 1
    assert (await base.find("kb-embedder")).total == 1


SPELLINGS = [
    ("parse json response", "def parseJSONResponse(text):"),
    ("get user by id", "def getUserById(number):"),
    ("pdf", "open all PDFs"),
    ("9fceb02", "fixed by 9fceb02d0ae598e95dc970b74767f19372d61af8"),
    ("9fceb02d0a", "fixed by 9fceb02d0ae598e95dc970b74767f19372d61af8"),
    ("E1234", "stops with E-1234"),
    ("E-77", "stops with E77"),
    ("da39a3e", "made from da39a3ee5e6b4b0d3255bfef95601890afd80709"),
    ("da39a3ee5", "made from da39a3ee5e6b4b0d3255bfef95601890afd80709"),
]


async def test_an_identifier_is_found_in_other_spellings(base: Base) -> None:
    for text in dict.fromkeys(text for _, text in SPELLINGS):
        await add(base, text)
    for query, text in SPELLINGS:
        results = (await base.find(query)).results
        assert [result.chunk.text for result in results][:1] == [text], query


FORMS = [
    ("the of\ufb01ce \ufb02oor", "office floor"),
    ("ｆｕｌｌ ｗｉｄｔｈ", "full width"),
    ("Straße am Fluß", "strasse fluss"),
    ("co\u00adope\u00adrate", "cooperate"),
    ("zero\u200bwidth", "zerowidth"),
    ("no\u00a0break", "break"),
    ("well\u2011known", "well-known"),
    ("don\u2019t", "don't"),
    ("ｶﾀｶﾅ", "カタカナ"),
    ("w Łodzi, Łódź", "Lodz"),
    ("smørrebrød", "smorrebrod"),
    ("שָׁלוֹם", "שלום"),
    ("क़लम", "कलम"),
    ("كِتَابٌ", "كتاب"),
]


async def test_the_form_of_a_letter_does_not_matter(embedded: Base) -> None:
    """Neither in the query nor in the text, with a known language or without."""
    for written, sought in FORMS:
        for query, text, language in ((sought, written, None), (written, sought, "de")):
            note = new_note(text, title="-", dedup_scope=str(language))
            await embedded.ingest(note, prepared(text, title="-", language=language))
            assert text in [result.chunk.text for result in (await embedded.find(query)).results], written


def test_an_identifier_that_is_nowhere_takes_nothing_away() -> None:
    words = Analyser().words_of("KB_EMBEDDER")
    counts = {"kb": 1, "embedd": 1}
    assert weigh_words(words, counts, 9)[1] == weigh_words(words[:-1], counts, 9)[1]
    assert words[-1] == ("kb_embedder",)


def test_prose_holds_no_identifiers() -> None:
    assert identifiers("A well-known text, e.g. one in upper-and-lower case and/or in the U.S.") == []
    assert identifiers("It ended. (So it was, he said!) \u201cYes\u201d - no; what? *** 1, 2: # - /") == []


def test_as_many_identifiers_count_as_are_in_any_question() -> None:
    many = " ".join(f"a-{number}" for number in range(200))
    assert sum(is_identifier(word[0]) for word in Analyser().words_of(many)) == MAX_IDENTIFIERS


@given(st.text(st.sampled_from("aB1ß_.-+#/@: \u00ad\ud800\n中")))
def test_no_text_is_refused_and_no_token_is_an_identifier(text: str) -> None:
    found = plain(text)
    assert plain(found) == found
    assert all(is_identifier(one) for one in identifiers(found))
    words = Analyser().words_of(text, ["de"])
    assert sum(is_identifier(word[0]) for word in words) == min(len(set(identifiers(found))), MAX_IDENTIFIERS)


@pytest.mark.parametrize(
    "text", ["a." * 100_000, "-" * 200_000, "_a" * 100_000, "a+" * 100_000, "#" * 9 + "a" * 99_999]
)
def test_giants_are_read_in_time(text: str) -> None:
    """The expression never backtracks: 200,000 characters take milliseconds."""
    assert len(identifiers(text)) <= len(text)
