"""Sentence models by their names, run by fastembed: those of its list, and those of `MODELS`.

fastembed knows repositories, files, tokenizers and pooling. Its list has no prefixes, which most models were
trained with, so they are here. The files are those of `ModelFolder`: fastembed itself downloads nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import msgspec

from kb_config.settings import Setting, SettingsError
from kb_engine.embed.local_model import LocalEmbedder, window
from kb_engine.embed.own_model import ModelSettings
from kb_engine.embed.protocol import EmbedderUnavailable, TextRefused
from kb_engine.index.port import Vectors
from kb_engine.model_files import HubModel, ModelFolder
from kb_engine.start_errors import DriverMissing, StartError

if TYPE_CHECKING:
    from fastembed import TextEmbedding
    from tokenizers import Tokenizer

FASTEMBED = "fastembed"
_EXAMPLE = "intfloat/multilingual-e5-small"


MODELS = {"intfloat/multilingual-e5-small": (384, 470), "intfloat/multilingual-e5-base": (768, 1110)}
"""Models that fastembed's list lacks: their dimensions, and their size in MB."""

_SEARCH = "Represent this sentence for searching relevant passages: "
_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
PREFIXES = {
    "intfloat/multilingual-e5-": ("query: ", "passage: "),
    "BAAI/bge-small-zh": ("为这个句子生成表示以用于检索相关文章：", ""),
    "BAAI/bge-": (_SEARCH, ""),
    "mixedbread-ai/mxbai-embed-": (_SEARCH, ""),
    "snowflake/snowflake-arctic-embed-": (_SEARCH, ""),
    "nomic-ai/nomic-embed-text-": ("search_query: ", "search_document: "),
    "google/embeddinggemma-": ("task: search result | query: ", "title: none | text: "),
    "Qwen/Qwen3-Embedding-": (_INSTRUCTION, ""),
}
"""Prefixes of queries and of passages, by the beginning of a model's name; the first match applies."""


class FastembedSettings(ModelSettings, frozen=True, kw_only=True):
    """The settings of every model, and the folder of downloaded models."""

    models: Annotated[Path, Setting("KB_MODELS", "folder of downloaded models, a subfolder each")] = Path(
        "~/.local/share/kb/models"
    )

    def check(self) -> None:
        if not self.embedding_model.strip():
            raise SettingsError(f"KB_EMBEDDER={FASTEMBED} needs KB_EMBEDDING_MODEL, as in {_EXAMPLE}")
        _ = self.chosen_scoring

    def with_prefixes(self, model: str) -> FastembedSettings:
        """Return these settings with the model's own prefixes where none is set."""
        own = next((each for start, each in PREFIXES.items() if model.startswith(start)), ("", ""))
        return msgspec.structs.replace(
            self,
            embedding_query_prefix=self.embedding_query_prefix or own[0],
            embedding_document_prefix=self.embedding_document_prefix or own[1],
        )


class FastembedEmbedder(LocalEmbedder):
    """A model by its name. The constructor downloads its files unless they are there.

    The name in a base has the model's name and the fingerprint of its files: changed files are refused like
    another model.
    """

    changed_by = "set KB_EMBEDDING_MODEL to its model"

    def __init__(self, settings: FastembedSettings) -> None:
        """Raises SettingsError, or StartError: fastembed or the model is missing."""
        settings.check()
        model = hub_model(settings.embedding_model.strip())
        self._name = model.name
        self._folder = ModelFolder(model, settings.models)
        super().__init__(
            settings.with_prefixes(model.name),
            f"{FASTEMBED}:{model.name}@{self._folder.record.fingerprint}",
            window(self._folder.path, settings.embedding_max_tokens),
        )

    def open(self) -> _Model:
        from kb_engine.embed.onnx_model import read_tokenizer

        try:
            self._folder.check()
            model = text_embedding()(
                self._name,
                threads=1,
                providers=["CPUExecutionProvider"],
                specific_model_path=str(self._folder.path),
            )
            tokenizer = read_tokenizer((self._folder.path / "tokenizer.json").read_text("utf-8"))
        except (EmbedderUnavailable, StartError) as error:
            raise EmbedderUnavailable(str(error)) from error
        except Exception as error:  # fastembed and the runtime raise errors without a common base class
            raise EmbedderUnavailable(f"fastembed cannot load {self._folder.path}: {error}") from error
        return _Model(model, tokenizer)


class _Model:
    def __init__(self, model: TextEmbedding, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()  # fastembed's own count ends at the window
        self._model = model
        self._tokenizer = tokenizer

    def count_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text).ids)

    def embed(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        # One text per run, as in `OnnxModel`: without padding, and independent of neighbouring texts.
        vectors = np.asarray(list(self._model.embed(list(texts), batch_size=1)), np.float32)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.all((lengths > 0) & (lengths < np.inf)):
            raise TextRefused("the model makes no vector of one text")
        return cast("Vectors", vectors / lengths)


def text_embedding() -> type[TextEmbedding]:
    """Import fastembed and return its class, which knows `MODELS` too. Raises DriverMissing."""
    prepare_runtime()
    try:
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType
    except ImportError as error:
        raise DriverMissing(f"KB_EMBEDDER={FASTEMBED}", FASTEMBED, FASTEMBED) from error
    listed = {each["model"].lower() for each in TextEmbedding.list_supported_models()}
    for name, (dimensions, megabytes) in MODELS.items():
        if name.lower() not in listed:
            TextEmbedding.add_custom_model(
                name,
                pooling=PoolingType.MEAN,
                normalization=True,
                sources=ModelSource(hf=name),
                dim=dimensions,
                model_file="onnx/model.onnx",
                license="mit",
                size_in_gb=megabytes / 1000,
            )
    return TextEmbedding


def prepare_runtime() -> None:
    """Turn off the telemetry of the runtime and fastembed's own log, before either is used."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        from loguru import logger
    except ImportError:
        return
    logger.disable("fastembed")


def hub_model(name: str) -> HubModel:
    """Return a model of fastembed's list or of `MODELS`. Raises DriverMissing or SettingsError."""
    return listed_model(text_embedding().list_supported_models(), name, "KB_EMBEDDING_MODEL")


def listed_model(listed: Sequence[dict[str, object]], name: str, variable: str) -> HubModel:
    """Return the model of this name, in any case, from a list of fastembed's. Raises SettingsError."""
    found = next((each for each in listed if str(each["model"]).lower() == name.lower()), None)
    if found is None:
        names = ", ".join(sorted(str(each["model"]) for each in listed))
        raise SettingsError(f"{variable}={name!r}: is none of {names}")
    own = cast("dict[str, str]", found)
    files = (own["model_file"], *cast("list[str]", found["additional_files"]))
    return HubModel(
        name=own["model"],
        repository=cast("dict[str, str]", found["sources"])["hf"],
        files=files,
        licence=own["license"],
    )
