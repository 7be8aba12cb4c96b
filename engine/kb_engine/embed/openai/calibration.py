"""The constants of the score for a model that nobody measured: from how near its vectors lie.

Models differ in what a cosine says. With MiniLM two texts on different subjects have 0.1; with e5 they have
0.75, and a floor of 0.3 would call everything near. So eight questions and eight passages, a pair on each of
eight subjects, are embedded once at loading:

    far    median cosine of a question and a passage on another subject
    near   median cosine of a question and the passage that answers it

    cosine_floor  between them, where MiniLM's lies that was measured on Cranfield
    w             so large that the step from far to near counts as much as with MiniLM
    k             MiniLM's: it belongs to the words
    floor         as MiniLM's follows from its cosine floor

MiniLM itself gets its own constants this way, and so does a model that cannot tell the pairs apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kb_engine.embed.minilm import MiniLM
from kb_engine.embed.protocol import ScoreWeights, Vectors

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

_BASE = MiniLM.weights
_FLOOR_SHARE = 0.6
"""How far MiniLM's cosine floor lies on the way from far to near."""
_BASE_STEP = 0.45
"""From far to near with MiniLM: 0.03 to 0.48."""
_LEAST_STEP = 0.03
_MOST_W = 0.85
_WORDS_AT_FLOOR = (_BASE.floor - _BASE.w * _BASE.cosine_floor) / (1 - _BASE.w)
"""What the words contribute where MiniLM's score is at its floor."""


class Spread(NamedTuple):
    """Median cosines of pairs on different subjects and on the same."""

    far: float
    near: float


def measured(questions: Vectors, passages: Vectors) -> Spread:
    """From the vectors of QUESTIONS and PASSAGES."""
    cosines = questions @ passages.T
    same = np.eye(len(QUESTIONS), dtype=np.bool_)
    return Spread(far=float(np.median(cosines[~same])), near=float(np.median(cosines[same])))


def weights(spread: Spread | None, chosen: Mapping[str, float]) -> ScoreWeights:
    """The constants; those of the settings stand over what was measured."""
    w, cosine_floor = _BASE.w, _BASE.cosine_floor
    if spread is not None and (step := spread.near - spread.far) >= _LEAST_STEP:
        w = min(_MOST_W, max(_BASE.w, _BASE_STEP / (_BASE_STEP + step)))
        cosine_floor = max(0.0, spread.far + _FLOOR_SHARE * step)
    w = chosen.get("w", round(w, 2))
    cosine_floor = chosen.get("cosine_floor", round(cosine_floor, 2))
    return ScoreWeights(
        w=w,
        k=chosen.get("k", _BASE.k),
        floor=chosen.get("floor", round(w * cosine_floor + (1 - w) * _WORDS_AT_FLOOR, 2)),
        cosine_floor=cosine_floor,
    )
