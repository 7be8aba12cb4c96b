"""The settings of an embedding endpoint (`KB_EMBEDDER=openai`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from kb_config.settings import Setting, SettingsError
from kb_engine.embed.own_model import ModelSettings
from kb_engine.endpoint.endpoint_settings import check_key, check_url, key_warnings

OPENAI = "openai"  # the value of `KB_EMBEDDER` for an endpoint with OpenAI's API

MOST_DIMENSIONS = 16_384

_EXAMPLE = "http://127.0.0.1:11434/v1"
_PATH = "/embeddings"


class OpenAISettings(ModelSettings, frozen=True, kw_only=True):
    """Settings of an OpenAI-compatible endpoint. Times are in seconds."""

    embedding_url: Annotated[
        str, Setting("KB_EMBEDDING_URL", f"base URL of the embedding endpoint, for example {_EXAMPLE}")
    ] = ""
    embedding_key: Annotated[
        str, Setting("OPENAI_API_KEY", "bearer key of the embedding endpoint; empty: none", secret=True)
    ] = ""
    embedding_dimensions: Annotated[
        int,
        Setting("KB_EMBEDDING_DIMENSIONS", "dimensions of requested vectors; 0: the model's default"),
        msgspec.Meta(ge=0, le=MOST_DIMENSIONS),
    ] = 0
    embedding_batch: Annotated[
        int,
        Setting("KB_EMBEDDING_BATCH", "maximum number of texts in a request to the endpoint"),
        msgspec.Meta(ge=1, le=2048),
    ] = 32
    embedding_timeout: Annotated[
        float,
        Setting("KB_EMBEDDING_TIMEOUT", "time-out of a request to the endpoint, in seconds"),
        msgspec.Meta(gt=0),
    ] = 60.0

    def check(self) -> None:
        for variable, value, example in (
            ("KB_EMBEDDING_URL", self.embedding_url, _EXAMPLE),
            ("KB_EMBEDDING_MODEL", self.embedding_model, "nomic-embed-text"),
        ):
            if not value.strip():
                raise SettingsError(f"KB_EMBEDDER={OPENAI} needs {variable}, for example {example}")
        check_url("KB_EMBEDDING_URL", self.embedding_url, key_variable="OPENAI_API_KEY", example=_EXAMPLE)
        if not self.embedding_model.isprintable():
            raise SettingsError(f"KB_EMBEDDING_MODEL={self.embedding_model!r}: is no name of a model")
        check_key("OPENAI_API_KEY", self.embedding_key)
        _ = self.chosen_scoring

    @property
    def embeddings_url(self) -> str:
        """The URL for requests: the base URL with the API's path, which the setting may include already."""
        base = self.embedding_url.rstrip("/")
        return base if base.endswith(_PATH) else base + _PATH

    def warnings(self, *, chosen: bool) -> Iterator[str]:
        if chosen:
            yield from key_warnings(
                "KB_EMBEDDING_URL", self.embedding_url, "OPENAI_API_KEY", self.embedding_key
            )
        elif self.embedding_url:
            yield f"KB_EMBEDDING_URL is not used: set KB_EMBEDDER={OPENAI} for that"
