"""The settings of the final score."""

from __future__ import annotations

import pytest

from kb_config.settings import SettingsError
from kb_contracts.api import models as m
from kb_contracts.semantics.ranking import DEFAULT_WEIGHTS, SOURCE_TYPE_WEIGHT, ranking_plan
from kb_engine.settings import EngineSettings


def test_default_settings_change_no_ranking() -> None:
    defaults = EngineSettings().ranking.defaults
    assert defaults.for_all is None
    assert set(defaults.weights.values()) == {DEFAULT_WEIGHTS}
    assert (defaults.decay_rate, defaults.source_type_weight) == (0.01, SOURCE_TYPE_WEIGHT)


@pytest.mark.requirement("R26", "R30")
def test_weights_are_set_for_each_kind_of_query() -> None:
    settings = EngineSettings.read(
        {
            "KB_RANKING": "true",
            "KB_RANKING_WEIGHTS": "semantic=0.5, recency=0.5",
            "KB_RANKING_WEIGHTS_EXACT": "semantic=1",
            "KB_RANKING_DECAY_RATE": "0.5",
            "KB_RANKING_SOURCES": "confluence=1,wiki=0.9,manual=0.2",
        }
    )
    defaults = settings.ranking.defaults
    assert defaults.for_all == m.Ranking()
    plans = [ranking_plan(query, m.Ranking(), defaults) for query in ("granite", "is it?", "kb_get")]
    assert [plan.weights.semantic for plan in plans] == [0.5, 0.5, 1.0]
    assert plans[0].decay_rate == 0.5
    assert plans[0].source_type_weight == {"confluence": 1.0, "wiki": 0.9, "manual": 0.2}


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("KB_RANKING_WEIGHTS", "semantic=0.5", "add up to 0.5, not to 1"),
        ("KB_RANKING_WEIGHTS_EXACT", "semantic=1,age=0", "takes semantic, recency.*not 'age'"),
        ("KB_RANKING_WEIGHTS_QUESTION", "semantic", "'semantic' is not NAME=NUMBER"),
        ("KB_RANKING_WEIGHTS", "semantic=2,recency=-1", "semantic is from 0 to 1"),
        ("KB_RANKING_SOURCES", "web=nan", "web is from 0 to 1"),
        ("KB_RANKING_SOURCES", "=1", "'=1' is not NAME=NUMBER"),
        ("KB_RANKING_DECAY_RATE", "11", "<= 10"),
        ("KB_RANKING_DECAY_RATE", "fast", "KB_RANKING_DECAY_RATE"),
        ("KB_RANKING", "perhaps", "KB_RANKING"),
    ],
)
def test_an_invalid_ranking_setting_is_refused_with_its_variable(
    variable: str, value: str, words: str
) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        EngineSettings.read({variable: value})
    assert variable in str(refused.value)
