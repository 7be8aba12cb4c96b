"""A base changes its embedder whole, and not before every chunk is embedded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kb_engine.index.port import Vectors
from kb_engine.store.port import BaseInUse, EmbedderIdentity, EmbedderMismatch, NotABase
from kb_engine.store.repository import documents
from kb_engine.store.sqlite import opening
from kb_engine.store.sqlite.opening import reindex_sqlite
from tests.support.stores import axis, opened

OTHER = EmbedderIdentity("other", 3)


def by_length(texts: Sequence[str]) -> Vectors:
    """An embedder of three dimensions that looks at the length of a text."""
    return np.eye(3, dtype=np.float32)[[len(text) % 3 for text in texts]]


@pytest.fixture
async def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base of two documents, three chunks and the test embedder; batches of two."""
    monkeypatch.setattr(opening, "REINDEX_BATCH", 2)
    async with opened(tmp_path / "kb.db") as base:
        await base.note("a", "bb", vectors=[axis(0), axis(1)])
        await base.note("ccc")
    return tmp_path / "kb.db"


async def test_all_chunks_are_embedded_anew_and_found(path: Path) -> None:
    """By the new embedder; words, documents and ids stay."""
    told: list[tuple[int, int]] = []
    count = reindex_sqlite(path, embedder=OTHER, embed=by_length, progress=lambda *step: told.append(step))
    assert (count, told) == (3, [(0, 3), (2, 3), (3, 3)])
    async with opened(path, embedder=OTHER) as base:
        found = await base.find("", "vector", vector=by_length(["bb"])[0])
        assert [(result.chunk.text, result.score) for result in found.results][:1] == [("bb", 1.0)]
        assert (await base.find("ccc")).total == 1
    with pytest.raises(EmbedderMismatch):
        async with opened(path):
            pass


class StoppedError(Exception):
    """Somebody pressed Ctrl-C."""


async def stopped_after(path: Path, batches: int) -> None:
    """A run that ends before it is done."""

    def embed(texts: Sequence[str]) -> Vectors:
        nonlocal batches
        if not batches:
            raise StoppedError
        batches -= 1
        return by_length(texts)

    with pytest.raises(StoppedError):
        reindex_sqlite(path, embedder=OTHER, embed=embed)


async def test_an_interrupted_run_leaves_the_base_as_it_was(path: Path) -> None:
    """It opens with its old embedder and takes changes."""
    await stopped_after(path, 1)
    async with opened(path) as base:
        assert (await base.find("", "vector", vector=axis(1))).results[0].chunk.text == "bb"
        await base.store.once(None, documents.delete, 1)
        await base.note("dddd")


async def test_an_interrupted_run_goes_on_where_it_stopped(path: Path) -> None:
    """What came and went meanwhile included."""
    await stopped_after(path, 1)
    async with opened(path) as base:
        await base.store.once(None, documents.delete, 1)
        await base.note("dddd")
    embedded: list[str] = []

    def embed(texts: Sequence[str]) -> Vectors:
        embedded.extend(texts)
        return by_length(texts)

    assert reindex_sqlite(path, embedder=OTHER, embed=embed) == 2
    assert embedded == ["ccc", "dddd"]
    async with opened(path, embedder=OTHER) as base:
        assert (await base.find("", "vector", vector=by_length(["dddd"])[0])).results[0].chunk.text == "dddd"


async def test_what_was_begun_for_another_embedder_is_dropped(path: Path) -> None:
    """Vectors of two embedders are never mixed."""
    await stopped_after(path, 1)
    third = EmbedderIdentity("third", 3)
    embedded: list[str] = []

    def embed(texts: Sequence[str]) -> Vectors:
        embedded.extend(texts)
        return by_length(texts)

    assert reindex_sqlite(path, embedder=third, embed=embed) == 3
    assert len(embedded) == 3


async def test_a_base_in_use_is_not_touched(path: Path) -> None:
    """The engine has to be stopped first."""
    async with opened(path):
        with pytest.raises(BaseInUse):
            reindex_sqlite(path, embedder=OTHER, embed=by_length)


def test_a_base_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """A mistyped path would otherwise succeed."""
    with pytest.raises(NotABase, match="there is none"):
        reindex_sqlite(tmp_path / "kb.db", embedder=OTHER, embed=by_length)
    assert list(tmp_path.iterdir()) == []


async def test_an_embedder_of_another_size_than_it_says_is_refused(path: Path) -> None:
    wrong = EmbedderIdentity("other", 4)
    with pytest.raises(ValueError, match="shape"):
        reindex_sqlite(path, embedder=wrong, embed=by_length)
    async with opened(path):
        pass
