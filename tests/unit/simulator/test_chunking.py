"""Passages are exact cuts of the text, in order, within the bound, and leave out white space alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kb_readers import Page
from kb_simulator.engine.index import MAX_CHARS, passages, text_of

PARAGRAPH = st.one_of(
    st.text(max_size=80),
    st.sampled_from(["# Heading", "## Another #", "word " * 400, "x" * 2_500, "A sentence. " * 200]),
    st.sampled_from(["\n\n", "日本" * 700]),
)
PAGES = st.lists(st.lists(PARAGRAPH, max_size=5).map("\n\n".join), min_size=1, max_size=3)


@given(PAGES, st.booleans())
def test_passages_are_cut_from_one_page_each_in_order_and_leave_out_white_space_alone(
    texts: list[str], headings: bool
) -> None:
    """Their offsets give them back, and what lies between them has no words."""
    pages = [Page(number, text) for number, text in enumerate(texts, start=1)]
    whole = text_of(pages)
    end = 0
    for passage in passages(pages, headings=headings):
        assert passage.start >= end
        assert not whole[end : passage.start].strip()
        assert whole[passage.start : passage.end] == passage.text
        assert 0 < len(passage.text) <= MAX_CHARS
        assert passage.page is not None
        assert passage.text in texts[passage.page - 1]
        end = passage.end
    assert not whole[end:].strip()


def test_a_heading_begins_a_passage_and_names_those_after_it() -> None:
    pages = [Page(None, "before\n\n# One #\nfirst\n\nsecond"), Page(None, "third\n\n## Two\nfourth")]
    found = [(passage.heading, passage.text) for passage in passages(pages, headings=True)]
    assert found == [
        (None, "before"),
        ("One", "# One #\nfirst\n\nsecond"),
        ("One", "third"),
        ("Two", "## Two\nfourth"),
    ]


def test_plain_text_has_no_headings() -> None:
    """A line with a hash is a line."""
    assert [p.heading for p in passages([Page(None, "# One\n\ntext")], headings=False)] == [None]


def test_paragraphs_are_put_together_while_they_fit() -> None:
    """Three of 400 characters make a passage of two and one of one."""
    text = "\n\n".join(["a" * 400, "b" * 400, "c" * 400])
    assert [len(passage.text) for passage in passages([Page(None, text)], headings=False)] == [802, 400]


def test_a_long_paragraph_is_cut_after_a_sentence() -> None:
    text = "The winter market closed early. " * 60
    found = passages([Page(None, text)], headings=False)
    assert all(passage.text.endswith("early.") for passage in found)
