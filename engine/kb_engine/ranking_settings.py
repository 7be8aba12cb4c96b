"""The settings of the final score: the defaults of a request's ranking. The contract has the formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from kb_config.settings import Setting, Settings, SettingsError
from kb_contracts.api import models as m
from kb_contracts.semantics import ranking


def _as_setting(shares: Mapping[str, float]) -> str:
    return ",".join(f"{name}={share:g}" for name, share in shares.items())


_USUAL = _as_setting(msgspec.structs.asdict(ranking.DEFAULT_WEIGHTS))


class RankingSettings(Settings, frozen=True, kw_only=True):
    """The default order of search results."""

    always: Annotated[
        bool, Setting("KB_RANKING", "order all searches by final score, instead of on request only")
    ] = False
    weights: Annotated[str, Setting("KB_RANKING_WEIGHTS", "weights of the final score, with a sum of 1")] = (
        _USUAL
    )
    weights_exact: Annotated[
        str,
        Setting(
            "KB_RANKING_WEIGHTS_EXACT",
            "weights for queries with a quoted phrase or an identifier; empty: KB_RANKING_WEIGHTS",
        ),
    ] = ""
    weights_question: Annotated[
        str, Setting("KB_RANKING_WEIGHTS_QUESTION", "weights for questions; empty: KB_RANKING_WEIGHTS")
    ] = ""
    decay_rate: Annotated[
        float,
        Setting("KB_RANKING_DECAY_RATE", "decay rate of recency, per day; 0.01 halves it in 69 days"),
        msgspec.Meta(ge=0, le=10),
    ] = ranking.DECAY_RATE
    sources: Annotated[
        str,
        Setting(
            "KB_RANKING_SOURCES", "reputation of source types; other types have the reputation of manual"
        ),
    ] = _as_setting(ranking.SOURCE_TYPE_WEIGHT)

    def __post_init__(self) -> None:
        _ = self.defaults

    @property
    def defaults(self) -> ranking.RankingDefaults:
        """The ranking defaults of these settings. Raises SettingsError."""
        usual = _weights("KB_RANKING_WEIGHTS", self.weights)
        exact = _weights("KB_RANKING_WEIGHTS_EXACT", self.weights_exact or self.weights)
        question = _weights("KB_RANKING_WEIGHTS_QUESTION", self.weights_question or self.weights)
        return ranking.RankingDefaults(
            for_all=m.Ranking() if self.always else None,
            weights={"keywords": usual, "exact": exact, "question": question},
            decay_rate=self.decay_rate,
            source_type_weight=_shares("KB_RANKING_SOURCES", self.sources),
        )


def _weights(variable: str, text: str) -> m.RankingWeights:
    shares = _shares(variable, text)
    if unknown := shares.keys() - set(m.RankingWeights.__struct_fields__):
        known = ", ".join(m.RankingWeights.__struct_fields__)
        raise SettingsError(f"{variable}={text!r}: takes {known}, not {min(unknown)!r}")
    weights = m.RankingWeights(**shares)
    if (why := ranking.misfit(weights)) is not None:
        raise SettingsError(f"{variable}={text!r}: the weights {why}; write them like {_USUAL}")
    return weights


def _shares(variable: str, text: str) -> dict[str, float]:
    """Parse `name=number, ...` into numbers from 0 to 1 by name."""
    shares: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            shares[name] = float(value)
        except ValueError:
            name = ""
        if not name:
            raise SettingsError(f"{variable}={text!r}: {part!r} is not NAME=NUMBER")
        if not 0 <= shares[name] <= 1:
            raise SettingsError(f"{variable}={text!r}: {name} is from 0 to 1")
    return shares
