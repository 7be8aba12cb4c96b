"""A sentence model from a local folder, in ONNX, as sentence-transformers and Optimum export it.

model.onnx or onnx/model.onnx      the model, its inputs among those of `OnnxModel`
tokenizer.json                     the tokenizer
1_Pooling/config.json              the pooling of token vectors; the default is their mean
sentence_bert_config.json, tokenizer_config.json, config.json    the maximum number of tokens
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from kb_config.settings import Setting, SettingsError
from kb_engine.embed.own_model import ModelSettings, as_setting, scoring_for
from kb_engine.embed.protocol import Embedder, EmbedderUnavailable
from kb_engine.index.port import Vectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kb_engine.embed.onnx_model import OnnxModel, Pooling

ONNX = "onnx"
"""The value of `KB_EMBEDDER` for a model in a folder."""

_MODELS = ("model.onnx", "onnx/model.onnx")
_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_WINDOWS = (
    ("sentence_bert_config.json", "max_seq_length"),
    ("tokenizer_config.json", "model_max_length"),
    ("config.json", "max_position_embeddings"),
)

logger = logging.getLogger(__name__)


class OnnxSettings(ModelSettings, frozen=True, kw_only=True):
    """The folder of the model, besides the settings of every model."""

    embedding_folder: Annotated[
        str, Setting("KB_EMBEDDING_FOLDER", "model folder with model.onnx and tokenizer.json")
    ] = ""
    embedding_pooling: Annotated[
        Literal["", "mean", "cls", "last"],
        Setting(
            "KB_EMBEDDING_POOLING",
            "pooling of token vectors: mean, cls or last; empty: read from the model folder",
        ),
    ] = ""

    def check(self) -> None:
        if not self.embedding_folder.strip():
            raise SettingsError(f"KB_EMBEDDER={ONNX} needs KB_EMBEDDING_FOLDER, as in ~/models/e5-small")
        _ = self.chosen_scoring

    def warnings(self, *, chosen: bool) -> Iterator[str]:
        if not chosen and self.embedding_folder:
            yield f"KB_EMBEDDING_FOLDER is not used: set KB_EMBEDDER={ONNX} for that"


class OnnxEmbedder(Embedder):
    """The model of one folder, loaded on first use. Its dimensions are known then, or from `expect`."""

    queries_at_once = 4

    def __init__(self, settings: OnnxSettings) -> None:
        """Raises SettingsError if the settings name no folder."""
        settings.check()
        self._settings = settings
        self._folder = Path(settings.embedding_folder).expanduser()
        self._lock = Lock()
        self._model: OnnxModel | None = None
        self.name = settings.base_name(f"onnx:{settings.embedding_model or self._folder.name}")
        stated = [_members(self._folder / file).get(member) for file, member in _WINDOWS]
        windows = [each for each in stated if isinstance(each, int) and each > 2]
        self.max_tokens = min([settings.embedding_max_tokens, *windows])
        self.dimensions = 0
        self.loaded = False
        self.scoring = scoring_for(None, settings.chosen_scoring)

    def expect(self, dimensions: int) -> None:
        self.dimensions = dimensions

    def load(self) -> None:
        self._ready()

    def count_tokens(self, text: str) -> int:
        """Return the model's own count, including the prefix of passages."""
        return self._ready().count_tokens(self._settings.embedding_document_prefix + text)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per passage; a passage beyond the window is truncated."""
        model = self._ready()
        if not texts:
            import numpy as np

            return np.empty((0, self.dimensions), np.float32)
        return model.embed([self._settings.embedding_document_prefix + text for text in texts])

    def embed_query(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self._ready().embed([self._settings.embedding_query_prefix + text])[0]
        return vector

    def _ready(self) -> OnnxModel:
        if (model := self._model) is None:
            with self._lock:
                if (model := self._model) is None:
                    model = self._model = self._load()
        return model

    def _load(self) -> OnnxModel:
        # Import numpy and the runtime only now: each command reads this module's settings.
        from kb_engine.embed.onnx_model import OnnxModel, open_session, read_tokenizer

        found = next((path for name in _MODELS if (path := self._folder / name).is_file()), None)
        if found is None:
            names = " or ".join(_MODELS)
            raise EmbedderUnavailable(f"KB_EMBEDDING_FOLDER={self._folder}: there is no {names} in it")
        try:
            tokenizer = read_tokenizer((self._folder / "tokenizer.json").read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise EmbedderUnavailable(f"KB_EMBEDDING_FOLDER: no tokenizer.json to read: {error}") from error
        pooling = self._settings.embedding_pooling or self._pooling()
        model = OnnxModel(open_session(found), tokenizer, max_tokens=self.max_tokens, pooling=pooling)
        questions, passages = map(model.embed, self._settings.probes())
        if self.dimensions not in (0, passages.shape[1]):
            raise EmbedderUnavailable(
                f"the model in {self._folder} makes vectors of {passages.shape[1]} numbers, and the base has "
                f"some of {self.dimensions}: set KB_EMBEDDING_FOLDER to its model, or run kb reindex"
            )
        self.dimensions = passages.shape[1]
        self.scoring = scoring_for(questions @ passages.T, self._settings.chosen_scoring)
        self.loaded = True
        logger.info(
            "embedding model loaded",
            extra={
                "model": self.name,
                "dimensions": self.dimensions,
                "pooling": pooling,
                "scoring": as_setting(self.scoring),
            },
        )
        return model

    def _pooling(self) -> Pooling:
        """Return the pooling that the folder declares. Raises EmbedderUnavailable if it is not supported."""
        members = _members(self._folder / "1_Pooling" / "config.json").items()
        modes = [name for name, on in members if name.startswith("pooling_mode_") and on is True]
        if not modes:
            return "mean"
        if len(modes) > 1 or modes[0] not in _POOLINGS:
            wanted = ", ".join(modes)
            raise EmbedderUnavailable(f"1_Pooling/config.json wants {wanted}: set KB_EMBEDDING_POOLING")
        return _POOLINGS[modes[0]]


def _members(path: Path) -> dict[str, Any]:
    """Read the members of a JSON object; empty if the file is missing or malformed."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return {}
