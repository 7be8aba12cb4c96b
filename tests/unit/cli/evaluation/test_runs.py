"""The figures of a run, and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kb_cli.evaluation.metrics import scores_of
from kb_cli.evaluation.runs import MODES, Answered, Judged, compare, figures, read_run, write_run
from kb_cli.output import CliError
from kb_contracts.api.models import Mode

SEED = 7


def judged(
    id_: str, rankings: Mapping[Mode, list[str]], *, question: str = "words", weak: bool = False
) -> Judged:
    """A question that `right` answers, or without rankings an unanswerable one."""
    gains = {"right": 1} if rankings else {}
    modes = {}
    for mode in MODES:
        ranking = rankings.get(mode, [])
        modes[mode] = Answered(scores_of(ranking, gains) if gains else {}, ranking, 2.0, weak)
    return Judged(id_, question, gains, modes)


def test_figures_say_what_the_parts_give_hybrid() -> None:
    run = [
        judged("1", {"hybrid": ["right"], "fts": ["right"], "vector": ["x"]}),
        judged("2", {"hybrid": ["right"], "fts": ["x"], "vector": ["right"]}),
        judged("3", {"hybrid": ["right"], "fts": ["right"], "vector": ["right"]}),
        judged("4", {"hybrid": ["x"], "fts": ["right"], "vector": ["x"]}),
    ]
    found = figures(run, SEED)
    assert {mode: each.ndcg for mode, each in found.items()} == {"hybrid": 0.75, "fts": 0.75, "vector": 0.5}
    parts = found["hybrid"].parts
    assert parts
    assert parts.relevant == {"both": 1, "fts": 1, "vector": 1, "neither": 0}
    assert (parts.over_fts.difference, parts.over_fts.better, parts.over_fts.worse) == (0.0, 1, 1)
    assert parts.over_vector.difference == 0.25
    assert not found["fts"].parts


def test_each_question_is_of_one_length_and_one_form() -> None:
    run = [
        judged("1", {"hybrid": ["right"], "fts": ["x"]}, question="keep warm"),
        judged("2", {"hybrid": ["x"], "fts": ["right"]}, question="How do bees " + "ever " * 10),
        judged("3", {"hybrid": ["right"]}, question="bees " * 25),
        judged("4", {"hybrid": ["right"]}, question="Warum frieren Bienen nicht?"),
    ]
    kinds = figures(run, SEED)["hybrid"].kinds
    assert {name: kind.questions for name, kind in kinds.items()} == {
        "up to 10 words": 2, "11 to 20 words": 1, "over 20 words": 1, "questions": 2, "keywords": 2,
    }  # fmt: skip
    over = kinds["11 to 20 words"].over_better_half
    assert over
    assert (over.difference, over.worse) == (-1.0, 1)


def test_weak_is_measured_on_both_sides() -> None:
    run = [judged(str(number), {"hybrid": ["right"]}, weak=number == 0) for number in range(4)]
    assert figures(run, SEED)["hybrid"].weak.missed is not None
    run += [judged("nothing", {}, weak=True), judged("nothing else", {}, weak=False)]
    found = figures(run, SEED)["hybrid"]
    assert (found.weak.false_alarms, found.weak.answerable) == (0.25, 4)
    assert (found.weak.missed, found.weak.unanswerable) == (0.5, 2)
    assert found.questions == 4


def test_a_comparison_names_what_got_better_and_worse(tmp_path: Path) -> None:
    before = [
        judged("1", {"hybrid": ["x", "right"]}),
        judged("2", {"hybrid": ["right"]}),
        judged("3", {"hybrid": ["x"]}),
        judged("only here", {"hybrid": ["right"]}),
    ]
    after = [
        judged("3", {"hybrid": ["right"]}),
        judged("2", {"hybrid": ["x", "right"]}),
        judged("1", {"hybrid": ["right"]}),
    ]
    write_run(tmp_path / "before", before)
    write_run(tmp_path / "after", after)
    compared = compare(read_run(tmp_path / "before"), read_run(tmp_path / "after"), SEED)
    hybrid = compared["hybrid"]
    assert hybrid.questions == 3
    assert [(each.id, each.before, each.after) for each in hybrid.better] == [
        ("3", 0.0, 1.0), ("1", 0.6309, 1.0),
    ]  # fmt: skip
    assert [each.id for each in hybrid.worse] == ["2"]
    assert hybrid.metrics["ndcg@10"].difference == pytest.approx(1 / 3, abs=1e-4)
    assert (compared["fts"].better, compared["fts"].worse) == ([], [])


def test_runs_of_different_questions_do_not_compare() -> None:
    one = [judged("1", {"hybrid": ["right"]}, question="bees")]
    other = [judged("1", {"hybrid": ["right"]}, question="tides")]
    with pytest.raises(CliError, match="no question in common"):
        compare(one, other, SEED)


def test_an_invalid_run_file_is_refused_with_the_line_number(tmp_path: Path) -> None:
    (tmp_path / "run").write_text('{"id": "1", "question": "x", "gains": {"a": 1}, "modes": {}}\n', "utf-8")
    with pytest.raises(CliError, match="run, line 1: a run has the answers of all modes"):
        read_run(tmp_path / "run")
