"""Recently added words: a view never changes, however much is added after it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kb_engine.index.embedded import postings
from kb_engine.index.embedded.postings import RecentWords, Terms
from tests.support.word_blocks import chunk, scores


def test_a_view_keeps_its_rows() -> None:
    recent = RecentWords()
    recent.append([chunk("a", "b"), chunk("a", "a")])
    view = recent.view(2)
    before = scores([view], ["a", "b", "new"])
    recent.append([chunk("a", "new", "b")])
    assert recent.view(3).frequencies(Terms(["a", "b", "new"])).tolist() == [3, 2, 1]
    np.testing.assert_array_equal(scores([view], ["a", "b", "new"]), before)
    assert view.frequencies(Terms(["a", "b", "new"])).tolist() == [2, 1, 0]
    assert view.postings().frequencies(Terms(["a", "b", "new"])).tolist() == [2, 1, 0]


def test_a_view_that_is_searched_often_is_indexed_and_answers_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postings, "INDEXED_AFTER", 1)
    recent = RecentWords()
    recent.append([chunk("a", "b"), chunk("a", "a"), chunk("c")])
    view = recent.view(2)
    before = scores([view], ["a", "b", "c", "new"])
    recent.append([chunk("a", "new", "b")])
    with monkeypatch.context() as patch:
        patch.setattr(RecentWords, "sorted", None)
        np.testing.assert_array_equal(scores([view], ["a", "b", "c", "new"]), before)
        assert view.frequencies(Terms(["a", "b", "c", "new"])).tolist() == [2, 1, 0, 0]


def test_a_view_of_nothing_has_no_words() -> None:
    view = RecentWords().view(0)
    assert len(view.lengths) == 0
    assert view.frequencies(Terms(["a"])).tolist() == [0]


def test_views_are_whole_while_a_thread_appends() -> None:
    recent = RecentWords()
    written = [0]

    def write() -> None:
        for row in range(3_000):
            recent.append([chunk("a", str(row))])
            written[0] = row + 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while writer.is_alive():
            size = written[0]
            view = recent.view(size)
            assert view.frequencies(Terms(["a", "0"])).tolist() == [size, min(size, 1)]
            assert view.postings().listed == 2 * size
    finally:
        writer.join()
    assert recent.view(3_000).frequencies(Terms(["a", "2999"])).tolist() == [3_000, 1]
