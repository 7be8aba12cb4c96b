"""A sentence model from a local folder, in ONNX, as sentence-transformers and Optimum export it.

model.onnx or onnx/model.onnx      the model, its inputs among those of `OnnxModel`
tokenizer.json                     the tokenizer
1_Pooling/config.json              the pooling of token vectors; the default is their mean
sentence_bert_config.json, tokenizer_config.json, config.json    the maximum number of tokens
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from kb_config.settings import Setting, SettingsError, expanded
from kb_engine.embed.local_model import LocalEmbedder, members, window
from kb_engine.embed.own_model import ModelSettings
from kb_engine.embed.protocol import EmbedderUnavailable

if TYPE_CHECKING:
    from kb_engine.embed.onnx_model import OnnxModel, Pooling

ONNX = "onnx"  # the value of `KB_EMBEDDER` for a model in a folder

_MODELS = ("model.onnx", "onnx/model.onnx")
_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}


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


class OnnxEmbedder(LocalEmbedder):
    """The model of one folder, loaded on first use. Its dimensions are known then, or from `expect`."""

    changed_by = "set KB_EMBEDDING_FOLDER to its model"

    def __init__(self, settings: OnnxSettings) -> None:
        """Raises SettingsError if the settings name no folder."""
        settings.check()
        self._folder = expanded("KB_EMBEDDING_FOLDER", settings.embedding_folder)
        self._chosen_pooling = settings.embedding_pooling
        name = f"onnx:{settings.embedding_model or self._folder.name}"
        super().__init__(settings, name, window(self._folder, settings.embedding_max_tokens))

    def open(self) -> OnnxModel:
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
        pooling = self._chosen_pooling or self._pooling()
        return OnnxModel(open_session(found), tokenizer, max_tokens=self.max_tokens, pooling=pooling)

    def _pooling(self) -> Pooling:
        """Return the pooling that the folder declares. Raises EmbedderUnavailable if it is not supported."""
        declared = members(self._folder / "1_Pooling" / "config.json").items()
        modes = [name for name, on in declared if name.startswith("pooling_mode_") and on is True]
        if not modes:
            return "mean"
        if len(modes) > 1 or modes[0] not in _POOLINGS:
            wanted = ", ".join(modes)
            raise EmbedderUnavailable(f"1_Pooling/config.json wants {wanted}: set KB_EMBEDDING_POOLING")
        return _POOLINGS[modes[0]]
