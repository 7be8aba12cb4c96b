"""A custom model: its settings, and the constants of the score, which are estimated.

Models differ in their range of cosines. With MiniLM two texts on different subjects have 0.1; with e5 they
have 0.75, and a floor of 0.3 would accept everything. So eight questions and eight passages, a pair on each
of eight subjects, are embedded once at loading:

    far    median cosine of a question and a passage on another subject
    near   median cosine of a question and the passage that answers it

    cosine_floor  at the relative position, between far and near, of MiniLM's measured one
    w             so large that the step from far to near counts as much as with MiniLM
    k             MiniLM's: it depends on the words only
    floor         derived from the cosine floor as with MiniLM

For MiniLM this yields its own constants; a model that cannot tell the pairs apart gets MiniLM's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec

from kb_config.settings import Setting, SettingsError
from kb_engine.embed.protocol import OwnSettings
from kb_engine.index.port import Scoring

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCORING = ("w", "k", "floor", "cosine_floor")
"""The constants in `KB_EMBEDDING_SCORING`, as in "cosine_floor=0.7,w=0.6"."""

QUESTIONS = (
    "How do bees keep warm in winter?",
    "What makes bread dough rise?",
    "Why did the bridge collapse in the storm?",
    "How is a broken arm treated?",
    "How are passwords stored safely?",
    "Which taxes does a small shop pay?",
    "How do sailors find their way at night?",
    "When should tomatoes be planted?",
)
PASSAGES = (
    "In the cold months the colony gathers in a cluster, and the insects shiver to heat the hive.",
    "Yeast turns sugar into carbon dioxide, whose bubbles are held by the gluten of the flour.",
    "The wind made the deck swing ever wider until the cables tore and the span fell into the river.",
    "The bone is set straight under anaesthesia and held in plaster for six weeks until it has healed.",
    "A server keeps only a salted hash of the secret, made by a function that is slow on purpose.",
    "A retailer owes value added tax on its sales and income tax on what is left at the end of the year.",
    "With a sextant they measured the height of known stars above the horizon and worked out their place.",
    "Sow the seeds indoors in March and set the young plants out once the last frost is over.",
)

_BASE_FAR, _BASE_STEP = 0.03, 0.45  # MiniLM's far, and its step from far to near
_LEAST_STEP = 0.03
_MOST_W = 0.85
_MOST_K = 3.0
"""Up to version 3.0 `k` was a BM25 score, 4 by default: such a value is refused, as it is no share."""


class ModelSettings(OwnSettings, frozen=True, kw_only=True):
    """Settings of a model, local or remote."""

    embedding_model: Annotated[
        str,
        Setting(
            "KB_EMBEDDING_MODEL", "model name at the endpoint or of fastembed, for example nomic-embed-text"
        ),
    ] = ""
    embedding_max_tokens: Annotated[
        int,
        Setting("KB_EMBEDDING_MAX_TOKENS", "maximum number of tokens of a text that the model reads"),
        msgspec.Meta(ge=64, le=1_000_000),
    ] = 512
    embedding_document_prefix: Annotated[
        str,
        Setting(
            "KB_EMBEDDING_DOCUMENT_PREFIX",
            "prefix of passages required by the model, for example 'passage: '",
        ),
        msgspec.Meta(max_length=200),
    ] = ""
    embedding_query_prefix: Annotated[
        str,
        Setting(
            "KB_EMBEDDING_QUERY_PREFIX", "prefix of queries required by the model, for example 'query: '"
        ),
        msgspec.Meta(max_length=200),
    ] = ""
    embedding_scoring: Annotated[
        str,
        Setting(
            "KB_EMBEDDING_SCORING",
            "constants of the score, for example cosine_floor=0.7,w=0.6; empty: measured",
        ),
    ] = ""

    def base_name(self, model: str) -> str:
        """The model's name in a database, including the prefix of passages, which changes their vectors."""
        prefix = self.embedding_document_prefix
        return f"{model} with {prefix!r}" if prefix else model

    def probes(self) -> tuple[list[str], list[str]]:
        """Return QUESTIONS and PASSAGES with their prefixes."""
        questions = [self.embedding_query_prefix + text for text in QUESTIONS]
        return questions, [self.embedding_document_prefix + text for text in PASSAGES]

    @property
    def chosen_scoring(self) -> dict[str, float]:
        """The configured constants by name. Raises SettingsError."""
        found: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in self.embedding_scoring.split(","))):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name not in SCORING:
                raise _unscored(self.embedding_scoring, f"takes {', '.join(SCORING)}, not {name!r}")
            try:
                found[name] = float(value)
            except ValueError:
                raise _unscored(self.embedding_scoring, f"{value!r} is no number") from None
            most = _MOST_K if name == "k" else 1.0
            if not 0 <= found[name] <= most or (name == "k" and not found[name]):
                why = f"{name} is from 0 to 1, and k, a share of what the query's words reach, above 0"
                raise _unscored(self.embedding_scoring, f"{why} to {_MOST_K:g}")
        return found


def as_setting(scoring: Scoring) -> str:
    """Format the constants as `KB_EMBEDDING_SCORING` takes them, so that logged ones can be configured."""
    weights = f"w={scoring.weight:g},k={scoring.saturation:g}"
    return f"{weights},floor={scoring.floor:g},cosine_floor={scoring.cosine_floor:g}"


def scoring_for(cosines: NDArray[np.float32] | None, chosen: Mapping[str, float]) -> Scoring:
    """Estimate the constants from the cosines of QUESTIONS (rows) and PASSAGES; `chosen` takes precedence."""
    import numpy as np  # not at the top, as MiniLM below: each command reads the settings

    from kb_engine.embed.minilm import MiniLM
    from kb_engine.index.score import fused, words_at_floor

    base = MiniLM.scoring
    w, cosine_floor = base.weight, base.cosine_floor
    words = words_at_floor(base)
    if cosines is not None:
        same = np.eye(len(QUESTIONS), dtype=np.bool_)
        far, near = float(np.median(cosines[~same])), float(np.median(cosines[same]))
        if (step := near - far) >= _LEAST_STEP:
            w = min(_MOST_W, max(w, _BASE_STEP / (_BASE_STEP + step)))
            cosine_floor = max(0.0, far + (base.cosine_floor - _BASE_FAR) / _BASE_STEP * step)
    w = chosen.get("w", round(w, 2))
    cosine_floor = chosen.get("cosine_floor", round(cosine_floor, 2))
    return Scoring(
        weight=w,
        saturation=chosen.get("k", base.saturation),
        floor=chosen.get("floor", round(fused(w, cosine_floor, words), 2)),
        cosine_floor=cosine_floor,
    )


def _unscored(value: str, why: str) -> SettingsError:
    return SettingsError(f"KB_EMBEDDING_SCORING={value!r}: {why}; write it like cosine_floor=0.7,w=0.6")
