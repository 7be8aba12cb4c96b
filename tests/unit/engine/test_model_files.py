"""The download of a model: its record, its resumption, and its absence once the files are there."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from kb_engine.model_files import HubModel, ModelFolder, ModelUnavailable
from tests.support.made_models import REVISION, hub, write_model

NOWHERE = "http://127.0.0.1:1"
MODEL = HubModel(name="made/small", repository="made/small", files=("onnx/model.onnx",), licence="mit")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    write_model(folder, "onnx/model.onnx", {"[UNK]": [1.0, 0.0], "bees": [0.0, 1.0]})
    return folder


async def test_a_model_is_downloaded_once_and_announced(
    repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    requests: list[str] = []
    with caplog.at_level(logging.INFO, "kb_engine.model_files"):
        async with hub("made/small", repository, requests) as url:
            first = await asyncio.to_thread(ModelFolder, MODEL, tmp_path / "models", endpoint=url)
    assert requests[0] == "/api/models/made/small/revision/main"
    assert sorted(requests[1:]) == [
        "config.json",
        "onnx/model.onnx",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    announced = vars(caplog.records[0])
    assert (announced["licence"], announced["revision"]) == ("mit", REVISION)
    assert announced["megabytes"] >= 0
    again = ModelFolder(MODEL, tmp_path / "models", endpoint=NOWHERE)
    again.check()
    assert again.record == first.record
    assert again.record.sha256.keys() == set(requests[1:])


async def test_an_interrupted_download_goes_on_where_it_ended(repository: Path, tmp_path: Path) -> None:
    weights = (repository / "onnx" / "model.onnx").read_bytes()
    partial = tmp_path / "models" / "made--small" / "onnx" / "model.onnx.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(weights[:10])
    requests: list[str] = []
    async with hub("made/small", repository, requests) as url:
        folder = await asyncio.to_thread(ModelFolder, MODEL, tmp_path / "models", endpoint=url)
    assert "onnx/model.onnx bytes=10-" in requests
    assert (folder.path / "onnx" / "model.onnx").read_bytes() == weights


async def test_a_file_that_is_not_the_announced_one_is_refused(repository: Path, tmp_path: Path) -> None:
    size = (repository / "onnx" / "model.onnx").stat().st_size
    partial = tmp_path / "models" / "made--small" / "onnx" / "model.onnx.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"x" * size)
    async with hub("made/small", repository, []) as url:
        with pytest.raises(ModelUnavailable, match="not the file that the hub announced"):
            await asyncio.to_thread(ModelFolder, MODEL, tmp_path / "models", endpoint=url)
        await asyncio.to_thread(ModelFolder, MODEL, tmp_path / "models", endpoint=url)


def test_files_put_there_by_hand_need_no_hub(repository: Path, tmp_path: Path) -> None:
    repository.rename(tmp_path / "made--small")
    folder = ModelFolder(MODEL, tmp_path, endpoint=NOWHERE)
    before = folder.record.fingerprint
    (folder.path / "onnx" / "model.onnx").write_bytes(b"changed")
    with pytest.raises(ModelUnavailable, match="has changed"):
        ModelFolder(MODEL, tmp_path, endpoint=NOWHERE).check()
    (folder.path / "kb-model.json").write_bytes(b'{"repository": "\xff"}')
    with pytest.raises(ModelUnavailable, match=r"kb-model\.json: .*remove the folder"):
        ModelFolder(MODEL, tmp_path, endpoint=NOWHERE)
    (folder.path / "kb-model.json").unlink()
    assert ModelFolder(MODEL, tmp_path, endpoint=NOWHERE).record.fingerprint != before


def test_a_model_that_cannot_be_downloaded_is_named_with_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"made/small \(mit\) is not in .*made--small"):
        ModelFolder(MODEL, tmp_path, endpoint=NOWHERE)
