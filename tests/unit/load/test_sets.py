"""The question sets of `bench sets`, made from small packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.sets import HALVES, Source, plain_ranks, set_of, unanswered, whole_set, wilson

SOURCE = Source("stones==1.*", "docs/", ("news",))
BODY = "Granite is a stone of the quarry. " * 15
FILES = {
    "granite.rst": f"Granite\n=======\n\n{BODY}\n\nCutting hard stones\n-----------------\n\nUse it.\n",
    "marble.rst": f".. _marble:\n\n======\n Gems\n======\n\nSee :doc:`the hard stone </granite>`.\n\n{BODY}",
    "news.rst": "News\n====\n\nPolishing of soft stones is quicker by half now, see :ref:`here <marble>`.",
}
CODE = {"stones.py": 'def weigh(stone):\n    """Return the weight of a stone.\n\n    In tons.\n    """\n'}


def test_questions_are_headings_links_and_sentences_of_release_notes() -> None:
    made = set_of(SOURCE, FILES)
    assert {(each.kind, each.text, each.answer) for each in made.questions} == {
        ("titles", "Cutting hard stones", "granite"),
        ("links", "the hard stone", "granite"),
        ("changes", "Polishing of soft stones is quicker by half now, see here.", "marble"),
    }
    title, text = made.documents["granite"]
    assert (title, made.documents["marble"][0]) == ("Granite", "Gems")
    assert text.startswith("# Granite")
    assert "Cutting hard stones" not in text
    assert "news" not in made.documents


def test_the_first_sentence_of_a_docstring_is_a_question_about_the_function() -> None:
    made = set_of(SOURCE, CODE)
    (question,) = made.questions
    assert (question.text, question.answer) == ("Return the weight of a stone.", "stones.weigh")
    assert "weight" not in made.documents["stones.weigh"][1]
    assert "In tons" in made.documents["stones.weigh"][1]


def test_each_question_is_in_one_part_of_the_set_and_is_found_by_its_words(tmp_path: Path) -> None:
    set_of(SOURCE, FILES).write(tmp_path)
    asked = [
        json.loads(line)["_id"]
        for half in HALVES
        for line in (tmp_path / half / "queries.jsonl").read_text("utf-8").splitlines()
    ]
    assert len(asked) == len(set(asked)) == 3
    ranks = [plain_ranks(tmp_path / half, lambda text: [text]) for half in HALVES]
    assert sorted(rank for each in ranks for rank in each.values() if rank) == [1, 2, 2]


def test_a_question_is_unanswered_unless_one_document_has_all_its_words(tmp_path: Path) -> None:
    set_of(SOURCE, FILES).write(tmp_path / "stones")
    whole_set(tmp_path / "stones", tmp_path / "whole")
    asked = (tmp_path / "whole" / "queries.jsonl").read_text("utf-8").splitlines()
    assert sorted(json.loads(line)["text"] for line in asked) == ["Cutting hard stones", "the hard stone"]
    questions = ["stones of quarries", "gems of quarries", "granite roofs"]
    assert unanswered(tmp_path / "whole", questions) == ["granite roofs"]


def test_rates_have_intervals_by_wilson() -> None:
    assert wilson(5, 100) == pytest.approx((0.05, 0.0215, 0.1118), abs=1e-4)
    assert wilson(0, 10)[:2] == (0.0, 0.0)
    assert wilson(0, 0) == (0.0, 0.0, 1.0)
