"""Models by their names, through fastembed: models made for the test, in the layout of a hub's repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kb_config.settings import SettingsError
from kb_engine.composition import embedder_of
from kb_engine.embed.fastembed_model import FastembedEmbedder, FastembedSettings, hub_model
from kb_engine.embed.protocol import EmbedderUnavailable
from kb_engine.settings import EngineSettings
from tests.support.made_models import write_model

ROOT = Path(__file__).parents[4]
E5 = "intfloat/multilingual-e5-small"
BGE = "BAAI/bge-small-en-v1.5"
WORDS = {
    "[UNK]": [0.0, 0.0, 0.0, 1.0],
    "query": [1.0, 0.0, 0.0, 0.0],
    "passage": [0.0, 1.0, 0.0, 0.0],
    "bees": [0.0, 0.0, 1.0, 0.0],
    ":": [0.0, 0.0, 0.0, 0.0],
}


def unit(*numbers: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    vector = np.array(numbers, np.float32)
    return vector / np.linalg.norm(vector)


def embedder_of_model(models: Path, model: str, file: str, **settings: Any) -> FastembedEmbedder:
    folder = models / model.replace("/", "--")
    if not folder.is_dir():
        write_model(folder, file, WORDS)
    return FastembedEmbedder(FastembedSettings(embedding_model=model, models=models, **settings))


def test_a_model_of_the_table_has_its_pooling_and_its_prefixes(tmp_path: Path) -> None:
    embedder = embedder_of_model(tmp_path, E5, "onnx/model.onnx")
    np.testing.assert_allclose(embedder.embed(["bees", ""]), [unit(0, 1, 1, 0), unit(0, 1, 0, 0)], rtol=1e-6)
    np.testing.assert_allclose(embedder.embed_query("bees"), unit(1, 0, 1, 0), rtol=1e-6)
    assert (embedder.max_tokens, embedder.dimensions, embedder.loaded) == (32, 4, True)
    assert embedder.count_tokens("bees " * 50) == 52
    assert embedder.embed([]).shape == (0, 4)


def test_a_model_of_fastembeds_list_has_its_own(tmp_path: Path) -> None:
    """This one takes the vector of the first token, and has a prefix for queries alone."""
    embedder = embedder_of_model(tmp_path, BGE, "model_optimized.onnx")
    np.testing.assert_allclose(embedder.embed(["bees query"]), [unit(0, 0, 1, 0)], rtol=1e-6)
    np.testing.assert_allclose(embedder.embed_query("bees"), unit(0, 0, 0, 1), rtol=1e-6)
    chosen = embedder_of_model(tmp_path, BGE, "model_optimized.onnx", embedding_query_prefix="query ")
    np.testing.assert_allclose(chosen.embed_query("bees"), unit(1, 0, 0, 0), rtol=1e-6)


def test_changed_files_are_another_embedder_to_a_base(tmp_path: Path) -> None:
    first = embedder_of_model(tmp_path, E5, "onnx/model.onnx")
    assert first.name.startswith(f"fastembed:{E5}@")
    assert first.name.endswith(" with 'passage: '")
    folder = tmp_path / "intfloat--multilingual-e5-small"
    write_model(folder, "onnx/model.onnx", {**WORDS, "ants": [1.0, 1.0, 1.0, 1.0]})
    with pytest.raises(EmbedderUnavailable, match="has changed"):
        first.load()
    (folder / "kb-model.json").unlink()
    assert embedder_of_model(tmp_path, E5, "onnx/model.onnx").name != first.name


def test_a_damaged_model_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "intfloat--multilingual-e5-small"
    write_model(folder, "onnx/model.onnx", WORDS)
    (folder / "onnx" / "model.onnx").write_bytes(b"none")
    with pytest.raises(EmbedderUnavailable, match="fastembed cannot load"):
        embedder_of_model(tmp_path, E5, "onnx/model.onnx").load()


def test_a_model_must_be_known(tmp_path: Path) -> None:
    environ = {"KB_EMBEDDER": "fastembed", "KB_MODELS": str(tmp_path)}
    with pytest.raises(SettingsError, match="needs KB_EMBEDDING_MODEL"):
        EngineSettings.read(environ)
    settings = EngineSettings.read({**environ, "KB_EMBEDDING_MODEL": "no/model"})
    with pytest.raises(Exception, match=r"KB_EMBEDDING_MODEL='no/model': is none of .*multilingual-e5-small"):
        embedder_of(settings)


def test_each_model_of_the_page_is_known() -> None:
    page = (ROOT / "docs" / "embedders.md").read_text("utf-8")
    names = re.findall(r"^\| `(\w[\w-]*/[\w.-]+)` \|", page, flags=re.MULTILINE)
    assert E5 in names
    assert [hub_model(name).name for name in names] == names
