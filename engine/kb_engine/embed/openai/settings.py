"""The settings of an embedding endpoint: where it is, what is asked of it, and what it makes of scores.

They count where `KB_EMBEDDER=openai`.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from kb_config.settings import Setting, SettingsError
from kb_engine.embed.protocol import OwnSettings

OPENAI = "openai"
"""The value of `KB_EMBEDDER` that names an endpoint which speaks OpenAI's API."""

MOST_DIMENSIONS = 16_384
SCORING = ("w", "k", "floor", "cosine_floor")
"""What `KB_EMBEDDING_SCORING` may set, as in "cosine_floor=0.7,w=0.6"."""

_EXAMPLE = "http://127.0.0.1:11434/v1"
_PATH = "/embeddings"


class OpenAISettings(OwnSettings, frozen=True, kw_only=True):
    """Settings of an OpenAI-compatible endpoint. Times are seconds."""

    embedding_url: Annotated[
        str, Setting("KB_EMBEDDING_URL", f"base URL of the embedding endpoint, for example {_EXAMPLE}")
    ] = ""
    embedding_model: Annotated[
        str, Setting("KB_EMBEDDING_MODEL", "the model as the endpoint calls it, for example nomic-embed-text")
    ] = ""
    embedding_key: Annotated[
        str, Setting("OPENAI_API_KEY", "bearer key of the embedding endpoint; empty: none", secret=True)
    ] = ""
    embedding_dimensions: Annotated[
        int,
        Setting("KB_EMBEDDING_DIMENSIONS", "length of vectors to ask for; 0: the model's own"),
        msgspec.Meta(ge=0, le=MOST_DIMENSIONS),
    ] = 0
    embedding_max_tokens: Annotated[
        int,
        Setting("KB_EMBEDDING_MAX_TOKENS", "tokens that the model reads of a text"),
        msgspec.Meta(ge=64, le=1_000_000),
    ] = 512
    embedding_document_prefix: Annotated[
        str,
        Setting("KB_EMBEDDING_DOCUMENT_PREFIX", "what the model wants before a passage, as in 'passage: '"),
        msgspec.Meta(max_length=200),
    ] = ""
    embedding_query_prefix: Annotated[
        str,
        Setting("KB_EMBEDDING_QUERY_PREFIX", "what the model wants before a question, as in 'query: '"),
        msgspec.Meta(max_length=200),
    ] = ""
    embedding_batch: Annotated[
        int, Setting("KB_EMBEDDING_BATCH", "most texts in one request"), msgspec.Meta(ge=1, le=2048)
    ] = 32
    embedding_timeout: Annotated[
        float, Setting("KB_EMBEDDING_TIMEOUT", "seconds that one request may take"), msgspec.Meta(gt=0)
    ] = 60.0
    embedding_scoring: Annotated[
        str,
        Setting("KB_EMBEDDING_SCORING", "constants of the score, like cosine_floor=0.7,w=0.6; else measured"),
    ] = ""

    def check(self) -> None:
        for variable, value, example in (
            ("KB_EMBEDDING_URL", self.embedding_url, _EXAMPLE),
            ("KB_EMBEDDING_MODEL", self.embedding_model, "nomic-embed-text"),
        ):
            if not value.strip():
                raise SettingsError(f"KB_EMBEDDER={OPENAI} needs {variable}, for example {example}")
        named = f"KB_EMBEDDING_URL={self.embedding_url!r}"
        try:
            parts = urlsplit(self.embedding_url)
            _ = parts.port
        except ValueError as error:
            raise SettingsError(f"KB_EMBEDDING_URL: {error}; write it like {_EXAMPLE}") from error
        if parts.username is not None or parts.password is not None:
            raise SettingsError(
                "KB_EMBEDDING_URL: holds a user or a password; put the key into OPENAI_API_KEY"
            )
        printable = self.embedding_url.isprintable() and " " not in self.embedding_url
        if parts.scheme not in {"http", "https"} or not parts.hostname or not printable:
            raise SettingsError(f"{named}: is no http or https URL; write it like {_EXAMPLE}")
        if parts.query or parts.fragment:
            raise SettingsError(f"{named}: ends in a query or a fragment; give the base URL alone")
        if not self.embedding_model.isprintable():
            raise SettingsError(f"KB_EMBEDDING_MODEL={self.embedding_model!r}: is no name of a model")
        # A header takes nothing else, and the message does not repeat the key.
        if not (self.embedding_key.isascii() and self.embedding_key.isprintable()):
            raise SettingsError("OPENAI_API_KEY=(secret): has a sign that no key has, such as a line's end")
        _ = self.scoring

    @property
    def embeddings_url(self) -> str:
        """Where texts are sent: the base URL and the path of the API, whichever of the two was given."""
        base = self.embedding_url.rstrip("/")
        return base if base.endswith(_PATH) else base + _PATH

    def warnings(self, *, chosen: bool) -> Iterator[str]:
        parts = urlsplit(self.embedding_url)
        if not chosen and self.embedding_url:
            yield f"KB_EMBEDDING_URL is not used: set KB_EMBEDDER={OPENAI} for that"
        try:
            local = ip_address(parts.hostname or "").is_loopback
        except ValueError:
            local = parts.hostname == "localhost"
        if chosen and self.embedding_key and parts.scheme == "http" and not local:
            yield "OPENAI_API_KEY is sent without encryption; give KB_EMBEDDING_URL with https"

    @property
    def scoring(self) -> dict[str, float]:
        """The constants that were set, by name. Raises SettingsError."""
        found: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in self.embedding_scoring.split(","))):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name not in SCORING:
                raise _unscored(self.embedding_scoring, f"takes {', '.join(SCORING)}, not {name!r}")
            try:
                found[name] = float(value)
            except ValueError:
                raise _unscored(self.embedding_scoring, f"{value!r} is no number") from None
            most = float("inf") if name == "k" else 1.0
            if not 0 <= found[name] <= most or (name == "k" and not 0 < found[name] < most):
                raise _unscored(self.embedding_scoring, f"{name} is from 0 to 1, and k is above 0")
        return found


def _unscored(value: str, why: str) -> SettingsError:
    return SettingsError(f"KB_EMBEDDING_SCORING={value!r}: {why}; write it like cosine_floor=0.7,w=0.6")
