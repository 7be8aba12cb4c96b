"""A cross-encoder on this machine, made for the test, through fastembed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from kb_engine.api.reranking import RerankFailed
from kb_engine.composition import reranker_from
from kb_engine.cores import CORES
from kb_engine.rerank.local import LocalReranker
from kb_engine.rerank.rerank_settings import RerankSettings
from kb_engine.settings import EngineSettings
from kb_engine.start_errors import RerankerUnknown
from tests.support.eventually import eventually_async
from tests.support.made_models import write_model

MODEL = "Xenova/ms-marco-MiniLM-L-6-v2"
TEXTS = ["slate", "granite granite", "granite"]


def made(models: Path, clock: Callable[[], float]) -> LocalReranker:
    folder = models / MODEL.replace("/", "--")
    write_model(folder, "onnx/model.onnx", {"[UNK]": [-4.0], "granite": [4.0]}, scores=True, window=512)
    return LocalReranker(RerankSettings(api="local", model=MODEL), models, clock=clock)


async def loaded(reranker: LocalReranker) -> None:
    """Wait until the model is loaded. Raises RerankFailed for any other reason."""

    async def is_loaded() -> bool:
        try:
            await reranker.scores("granite", ["granite"])
        except RerankFailed as error:
            if "is loading" in str(error):
                return False
            raise
        return True

    await eventually_async(is_loaded, what="the model")


async def test_passages_are_read_with_the_query(tmp_path: Path) -> None:
    reranker = made(tmp_path, lambda: 0.0)
    await loaded(reranker)
    slate, twice, once = await reranker.scores("quarry", TEXTS)
    assert 0 < slate < once < twice < 1
    assert await reranker.scores("quarry", []) == []
    await reranker.close()


async def test_candidates_are_as_many_as_are_read_in_time(tmp_path: Path) -> None:
    """Each look at the clock comes an eighth of a second later, so that a passage takes as long."""
    eighths = itertools.count()
    reranker = made(tmp_path, lambda: next(eighths) / 8)
    await loaded(reranker)
    assert reranker.candidates == int(6.4 * min(2, CORES))
    scores = await reranker.scores("quarry", ["granite"] * 50)
    read = sum(score > 0 for score in scores)
    assert 0 < read <= 8
    assert all(scores[:read])
    await reranker.close()


async def test_without_a_passage_read_in_time_the_order_stays(tmp_path: Path) -> None:
    late = itertools.count(0, 100)
    reranker = made(tmp_path, lambda: next(late))
    with pytest.raises(RerankFailed, match="did not read a passage within 1 s"):
        await loaded(reranker)
    await reranker.close()


async def test_a_damaged_model_fails_each_reranking(tmp_path: Path) -> None:
    folder = tmp_path / MODEL.replace("/", "--")
    write_model(folder, "onnx/model.onnx", {"[UNK]": [0.0]}, scores=True)
    (folder / "onnx" / "model.onnx").write_bytes(b"none")
    reranker = LocalReranker(RerankSettings(api="local", model=MODEL), tmp_path)
    with pytest.raises(RerankFailed, match="cannot load its model"):
        await loaded(reranker)
    await reranker.close()


def test_a_model_must_be_in_the_list() -> None:
    settings = EngineSettings(parts=(RerankSettings(api="local", model="no/model"),))
    with pytest.raises(RerankerUnknown, match=r"KB_RERANK_MODEL='no/model': is none of .*ms-marco"):
        reranker_from(settings)
