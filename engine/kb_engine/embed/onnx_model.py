"""A sentence model on a runtime, run for one text on one core: shared by the local embedders."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kb_config.installing import install_command
from kb_engine.embed.protocol import EmbedderUnavailable, TextRefused
from kb_engine.index.port import Vectors

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

Pooling: TypeAlias = Literal["mean", "cls", "last"]
"""Pooling of token vectors into one: their mean, the first (`cls`), or the last."""

_INPUTS: dict[str, Callable[[NDArray[np.int64]], NDArray[np.int64]]] = {
    "input_ids": lambda ids: ids,
    "attention_mask": np.ones_like,
    "token_type_ids": np.zeros_like,
    "position_ids": lambda ids: np.arange(ids.shape[1], dtype=np.int64)[np.newaxis],
}


class Session(Protocol):
    """A model on a runtime. It serves all threads; `run` computes on the calling thread."""

    inputs: Sequence[str]
    outputs: Mapping[str, int]  # number of axes of each output

    def run(self, output: str, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Return an output, (1, tokens, dimensions) or (1, dimensions), for inputs of shape (1, tokens)."""
        raise NotImplementedError


class OnnxModel:
    """A model in memory with its tokenizer. Each call blocks, and runs on the calling thread.
    Raises EmbedderUnavailable: the model has an unknown input.
    """

    def __init__(
        self, session: Session, tokenizer: Tokenizer, *, max_tokens: int, pooling: Pooling = "mean"
    ) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._pooling = pooling
        if unknown := sorted(set(session.inputs) - set(_INPUTS)):
            raise EmbedderUnavailable(
                f"the model wants the inputs {unknown}: is it one that embeds sentences?"
            )
        # A model with its own pooling has an output of one vector per text, usually beside the token vectors.
        pooled = [name for name, axes in session.outputs.items() if axes == 2]
        self._output = "sentence_embedding" if "sentence_embedding" in pooled else next(iter(session.outputs))
        # Disable padding and truncation that the file may declare; texts are cut at `max_tokens` here.
        tokenizer.no_padding()
        tokenizer.no_truncation()

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of the untruncated text, including special tokens."""
        return len(self._tokenizer.encode(text).ids)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per text, shape (n, dimensions); texts are truncated at `max_tokens`.

        One text per run: as fast as batches on a CPU, without padding, and independent of neighbouring texts.
        Raises TextRefused if the model's result is not a finite, non-zero vector.
        """
        return np.stack([self._embed_one(text) for text in texts])

    def _embed_one(self, text: str) -> Vectors:
        ids = self._tokenizer.encode(text).ids
        if len(ids) > self._max_tokens:
            ids = [*ids[: self._max_tokens - 1], ids[-1]]  # keep the closing token, as in training
        tokens = np.array([ids], dtype=np.int64)
        inputs = {name: _INPUTS[name](tokens) for name in self._session.inputs}
        vector: Vectors = np.asarray(self._session.run(self._output, inputs), dtype=np.float32)[0]
        if vector.ndim == 2:
            match self._pooling:
                case "mean":  # without padding all positions count, so the masked mean is the mean
                    vector = vector.mean(axis=0)
                case "cls":
                    vector = vector[0]
                case "last":
                    vector = vector[-1]
        length = np.linalg.norm(vector)
        if not 0 < length < np.inf:
            raise TextRefused("the model makes no vector of one text")
        return vector / np.float32(length)


class OnnxRuntimeSession:
    """A model on onnxruntime."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self.inputs: Sequence[str] = [each.name for each in session.get_inputs()]
        self.outputs: Mapping[str, int] = {each.name: len(each.shape) for each in session.get_outputs()}

    def run(self, output: str, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self._session.run([output], dict(inputs))[0]
        return found


def open_session(model: bytes | Path) -> OnnxRuntimeSession:
    """Open a session of one thread. Raises EmbedderUnavailable: missing package, or not a model."""
    # From 1.29 on the runtime's Linux builds send telemetry unless this is set before the import: turned off
    # by its API afterwards, it has already written a device id into the user's cache.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_package("onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # Waiting threads sleep instead of spinning, to leave the cores to other work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    source = model if isinstance(model, bytes) else str(model)  # a path, for weights in a separate file
    try:
        session = onnxruntime.InferenceSession(
            source, sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # the runtime's errors have no common base class
        raise EmbedderUnavailable(f"onnxruntime cannot load the model: {error}") from error
    return OnnxRuntimeSession(session)


def read_tokenizer(text: str) -> Tokenizer:
    """Parse a `tokenizer.json`. Raises EmbedderUnavailable."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing_package("tokenizers") from error
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the package raises plain `Exception`
        raise EmbedderUnavailable(f"tokenizer.json is no tokenizer: {error}") from error


def missing_package(package: str, extra: str = "engine") -> EmbedderUnavailable:
    """The error if a package of the embedder is not installed."""
    return EmbedderUnavailable(
        f"the package {package} is missing, which the embedder needs: {install_command(extra)}; "
        f"or set KB_EMBEDDER=hash, which needs no model"
    )
