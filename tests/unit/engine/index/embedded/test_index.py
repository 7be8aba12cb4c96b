"""The embedded index: its states, changes, and concurrent merges of its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_engine.index.embedded import index as embedded
from kb_engine.index.embedded.array_file import UnreadableIndexFile
from kb_engine.index.embedded.block import open_segment, write_segment
from kb_engine.index.embedded.index import Changes, EmbeddedIndex, Part, State, next_union, remaining, united
from kb_engine.index.embedded.selection import Lookup, living
from kb_engine.index.embedded.tail import Batch
from kb_engine.index.port import Candidate, Ids, IndexQuery, Scoring, Vectors

DIMENSIONS = 4
SCORING = Scoring(weight=0.5, saturation=0.5, floor=0.3, cosine_floor=0.3)
WORDS = ["apple", "pear", "plum"]


def vectors(chunk_ids: Ids) -> Vectors:
    """Return a vector for each chunk, which depends on its id only."""
    found = np.array([np.random.default_rng(number).normal(size=DIMENSIONS) for number in chunk_ids.tolist()])
    found = found.reshape(len(chunk_ids), DIMENSIONS)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)


def batch(document: int, first: int, count: int) -> Batch:
    """A batch of one document's chunks, numbered from `first`."""
    ids = np.arange(first, first + count, dtype=np.int64)
    texts = [(None, f"{WORDS[number % 3]} {WORDS[number % 2]}") for number in ids.tolist()]
    return Batch(document, "title", ids, texts, vectors(ids))


def ids(state: State, *documents: int) -> list[int]:
    """Return the chunks of these documents, by default of all."""
    wanted = np.array(documents, np.int64) if documents else None
    found: list[int] = []
    for part, allowed in zip(state.parts, living(state, wanted), strict=True):
        found += part.block.chunk_ids[slice(None) if allowed is None else allowed].tolist()
    return found


def answers(state: State, documents: Ids | None = None, readable: Ids | None = None) -> list[Candidate]:
    """The best candidates, with exact scores."""
    query = IndexQuery("", "hybrid", vectors(np.array([10_000]))[0], SCORING, 1_000)
    words = [("appl",), ("plum",)]
    return list(Lookup(state, words, documents, query, readable=readable).best(query, vectors).best)


def index_of(*changes: Changes) -> EmbeddedIndex:
    index = EmbeddedIndex(State(DIMENSIONS))
    for each in changes:
        index.publish(index.stage(each))
    return index


@pytest.fixture
def small_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "TAIL_ROWS", 10)


def test_rows_are_chosen_by_document() -> None:
    state = index_of(*(Changes(added=[batch(*each)]) for each in ((1, 1, 2), (2, 3, 3), (3, 6, 1)))).state
    assert (ids(state), ids(state, 2), ids(state, 1, 3)) == ([1, 2, 3, 4, 5, 6], [3, 4, 5], [1, 2, 6])
    assert state.size == 6


@pytest.mark.parametrize(
    "readable", [[1, 2, 3, 4], [1, 2], [1, 4], [2], [3], []], ids=lambda those: f"of documents {those}"
)
def test_words_count_as_if_only_what_is_readable_were_there(small_tails: None, readable: list[int]) -> None:
    """Blocks that are readable wholly, partly and not at all; document 3 was removed."""
    added = {number: batch(number, 10 * number, 5 + number) for number in (1, 2, 3, 4)}
    index = index_of(*(Changes(added=[each]) for each in added.values()), Changes(removed=[3]))
    assert len(index.state.parts) > 1
    alone = index_of(*(Changes(added=[added[number]]) for number in readable if number != 3))
    reached = np.array(readable, np.int64)
    found = answers(index.state, reached, reached)
    assert found == answers(alone.state)
    assert any(each.bm25 for each in found) == bool(found)


def test_a_state_does_not_change(small_tails: None) -> None:
    index = index_of(Changes(added=[batch(1, 1, 3)]), Changes(added=[batch(2, 4, 30)]))
    before = index.state
    known = answers(before)
    index.publish(index.stage(Changes(removed=[2], added=[batch(3, 100, 50)])))
    index.publish(index.stage(Changes(cleared=True, added=[batch(4, 200, 10)])))
    assert (ids(before), answers(before)) == (list(range(1, 34)), known)
    assert ids(index.state) == list(range(200, 210))


def test_staged_changes_that_are_not_published_have_no_effect() -> None:
    """A rolled-back transaction leaves neither rows nor words, and its ids may be reused."""
    index = index_of(Changes(added=[batch(1, 1, 2)]))
    index.stage(Changes(added=[batch(2, 3, 4)]))
    assert (ids(index.state), index.state.size) == ([1, 2], 2)
    index.publish(index.stage(Changes(added=[batch(9, 3, 1)])))
    expected = index_of(Changes(added=[batch(1, 1, 2)]), Changes(added=[batch(9, 3, 1)])).state
    assert ids(index.state, 9) == [3]
    assert answers(index.state) == answers(expected)


def test_a_batch_that_breaks_off_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of(Changes(added=[batch(1, 1, 2)]))
    with monkeypatch.context() as broken:
        broken.setattr(index._analyser, "_tokens", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            index.stage(Changes(added=[batch(2, 3, 4)]))
    index.publish(index.stage(Changes(added=[batch(2, 3, 1)])))
    assert answers(index.state) == answers(
        index_of(Changes(added=[batch(1, 1, 2)]), Changes(added=[batch(2, 3, 1)])).state
    )


def test_changes_are_staged_one_behind_the_other() -> None:
    """This happens if several operations are committed together."""
    index = index_of()
    first = index.stage(Changes(added=[batch(1, 1, 2)]))
    second = index.stage(Changes(removed=[1], added=[batch(1, 3, 1)]), first)
    index.publish(index.stage(Changes(added=[batch(2, 4, 1)]), second))
    assert ids(index.state) == [3, 4]


@pytest.mark.parametrize(
    "wrong",
    [
        Batch(1, "", np.array([9]), [(None, "x")], vectors(np.array([9]))[:, :2]),
        Batch(1, "", np.array([9, 10]), [(None, "x")] * 2, vectors(np.array([9]))),
        Batch(1, "", np.array([2]), [(None, "x")], vectors(np.array([2]))),
        Batch(1, "", np.array([9, 9]), [(None, "x")] * 2, vectors(np.array([9, 9]))),
        Batch(1, "", np.array([9]), [(None, "x")], np.full((1, DIMENSIONS), np.nan, np.float32)),
    ],
    ids=["short vectors", "too few", "an old id", "an id twice", "no numbers"],
)
def test_a_batch_that_does_not_fit_is_refused_whole(wrong: Batch) -> None:
    index = index_of(Changes(added=[batch(1, 1, 3)]))
    with pytest.raises(ValueError, match=r"chunk|vector"):
        index.stage(Changes(added=[wrong]))
    assert ids(index.state) == [1, 2, 3]


def test_a_change_of_nothing_is_false() -> None:
    assert not Changes()
    assert all((Changes(cleared=True), Changes(removed=[1]), Changes(added=[batch(1, 1, 1)])))


def unite(
    folder: Path,
    index: EmbeddedIndex,
    meanwhile: Callable[[], None] = lambda: None,
    closing: int | None = None,
) -> bool:
    """Do the next merge, or the last one, of up to `closing` rows; return False if none is due."""
    state = index.state if closing is None else replace(index.state, tail=None)
    if not (parts := next_union(state, closing or 0)):
        return False
    name, block = f"{len(list(folder.iterdir()))}", None
    if rest := remaining(parts):
        write_segment(folder / name, rest)
        block = open_segment(folder / name, DIMENSIONS)
    meanwhile()
    following = united(index.state, parts, block, name)
    if following is not None:
        index.publish(following)
    return True


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5), st.integers(1, 25)),
        st.tuples(st.just("remove"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
        st.tuples(st.just("unite"), st.just(0), st.just(0)),
        st.tuples(st.just("close"), st.just(0), st.integers(0, 60)),
    ),
    max_size=16,
)


@given(CHANGES, CHANGES)
def test_any_history_gives_the_answers_of_what_remains(
    changes: list[tuple[str, int, int]], meanwhile: list[tuple[str, int, int]]
) -> None:
    """Also if the index changes during a merge: scores are equal to the last bit, with or without filter."""
    index, model, last = index_of(), dict[int, list[int]](), 0

    def change(kind: str, document: int, count: int) -> None:
        nonlocal last
        if kind == "add":
            new = batch(document, last + 1, count)
            index.publish(index.stage(Changes(removed=[document], added=[new])))
            model[document] = new.chunk_ids.tolist()
            last += count
        elif kind == "remove":
            index.publish(index.stage(Changes(removed=[document])))
            model.pop(document, None)
        elif kind == "clear":
            index.publish(index.stage(Changes(cleared=True)))
            model.clear()

    def change_all(those: list[tuple[str, int, int]]) -> None:
        for kind, document, count in those:
            change(kind, document, count)

    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "TAIL_ROWS", 10)
        for kind, document, count in changes:
            if kind in ("unite", "close"):
                unite(Path(name), index, closing=count if kind == "close" else None)
            change(kind, document, count)
        unite(Path(name), index, lambda: change_all(meanwhile))
        while unite(Path(name), index):
            pass
    of_documents = {chunk: document for document, chunks in model.items() for chunk in chunks}
    fresh = index_of(
        *(Changes(added=[batch(of_documents[chunk], chunk, 1)]) for chunk in sorted(of_documents))
    ).state
    assert (ids(index.state), index.state.size) == (sorted(of_documents), len(of_documents))
    assert answers(index.state) == answers(fresh)
    assert answers(index.state, np.array([1, 3])) == answers(fresh, np.array([1, 3]))


def test_parts_stay_few_and_rows_are_written_seldom(
    small_tails: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LARGEST_ROWS", 160)
    index, written = index_of(), 0
    for number in range(64):
        index.publish(index.stage(Changes(added=[batch(number, 1 + 10 * number, 10)])))
        while parts := next_union(index.state):
            written += sum(part.size for part in parts)
            assert unite(tmp_path, index)
        sizes = [part.size for part in index.state.parts]
        assert len(sizes) <= number // 16 + 5 + 1, sizes
        assert max(sizes) <= 160
    assert written <= 640 * 5


def test_the_last_merge_includes_small_segments_and_the_tail(small_tails: None, tmp_path: Path) -> None:
    index = index_of()
    for number in range(15):
        index.publish(index.stage(Changes(added=[batch(number, 1 + 10 * number, 10)])))
        unite(tmp_path, index)
    assert [part.size for part in index.state.parts] == [80, 40, 20, 10]
    assert unite(tmp_path, index, closing=70)
    assert [(part.size, part.name is None) for part in index.state.parts] == [(80, False), (70, False)]
    assert ids(index.state) == list(range(1, 151))
    assert not unite(tmp_path, index, closing=1_000)


def test_removed_rows_do_not_pile_up(small_tails: None, tmp_path: Path) -> None:
    index = index_of()
    for number in range(60):
        index.publish(index.stage(Changes(removed=[1], added=[batch(1, 1 + 10 * number, 10)])))
        while unite(tmp_path, index):
            pass
    assert index.state.size == 10
    assert sum(len(part.block) for part in index.state.parts) <= 20


def test_a_large_segment_is_written_anew_when_a_part_of_it_was_removed(
    small_tails: None, tmp_path: Path
) -> None:
    index = index_of(*(Changes(added=[batch(number, 1 + 10 * number, 10)]) for number in range(9)))
    assert unite(tmp_path, index)
    (segment, _) = index.state.parts
    index.publish(index.stage(Changes(removed=[1, 2])))
    assert not next_union(index.state)
    index.publish(index.stage(Changes(removed=[3])))
    assert unite(tmp_path, index)
    assert [len(part.block) for part in index.state.parts] == [len(segment.block) - 30, 10]


@pytest.mark.parametrize("dimensions", [1, 3, 384])
def test_a_segment_holds_the_rows_that_remain(tmp_path: Path, dimensions: int) -> None:
    random = np.random.default_rng(0)
    added = []
    for document, first in ((1, 1), (2, 40), (3, 41)):
        chunk_ids = np.arange(first, first + 1 + document, dtype=np.int64)
        found = random.normal(size=(len(chunk_ids), dimensions)).astype(np.float32)
        added.append(Batch(document, "t", chunk_ids, [(None, "a b")] * len(chunk_ids), found))
    index = EmbeddedIndex(State(0))
    index.publish(index.stage(Changes(added=[added[0]])))
    (first_part,) = index.state.parts
    index.publish(index.stage(Changes(removed=[1], added=added[2:])))
    write_segment(tmp_path / "segment", [*remaining(index.state.parts), *remaining([first_part])])
    block = open_segment(tmp_path / "segment", dimensions)
    assert block.chunk_ids.tolist() == [41, 42, 43, 44, 1, 2]
    assert (block.document_ids.tolist(), block.document_rows.tolist()) == ([3, 1], [4, 2])
    assert np.array_equal(block.vectors.codes[:4], index.state.parts[0].block.vectors.codes[2:])
    assert block.words.lengths.tolist() == [3.0] * 6
    with pytest.raises(UnreadableIndexFile, match="other vectors"):
        open_segment(tmp_path / "segment", dimensions + 1)


def test_no_part_is_united_that_is_there_no_more() -> None:
    index = index_of(Changes(added=[batch(1, 1, 3)]))
    gone = index.state.parts
    index.publish(index.stage(Changes(cleared=True, added=[batch(1, 9, 3)])))
    assert united(index.state, gone, None, "x") is None
    assert united(State(DIMENSIONS), [Part(gone[0].block)], None, "x") is None


def test_chunks_are_not_appended_to_a_tail_that_was_written(tmp_path: Path) -> None:
    index = index_of(Changes(added=[batch(1, 1, 3)]))
    parts = index.state.parts
    write_segment(tmp_path / "x", remaining(parts))
    written = united(index.state, parts, open_segment(tmp_path / "x", DIMENSIONS), "x")
    assert written is not None
    assert written.tail is None
    index.publish(written)
    index.publish(index.stage(Changes(added=[batch(2, 4, 2)])))
    assert [part.name for part in index.state.parts] == ["x", None]
    assert ids(index.state) == [1, 2, 3, 4, 5]
