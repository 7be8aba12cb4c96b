"""Errors of a dataset name the file and the line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kb_cli.evaluation import dataset as module
from kb_cli.evaluation.dataset import Dataset, Position, own_questions
from kb_cli.output import CliError, Exit
from tests.unit.cli.evaluation.conftest import QUERIES


def test_a_dataset_has_its_judged_questions_and_the_documents_that_hold_text(dataset: Path) -> None:
    read = Dataset.read(dataset)
    assert [question.id for question in read.questions] == ["q1", "q2", "q3", "q4"]
    assert read.questions[1].gains == {"rust": 1, "tide": 0}
    assert read.documents == 6
    notes = {document: note for _, document, note in read.notes()}
    assert notes["title"].text == "Glaciers move slowly downhill"
    assert notes["rust"].title is None
    assert notes["rust"].dedup_scope != notes["twin"].dedup_scope


@pytest.mark.parametrize(("position", "ids"), [("odd", ["q1", "q3"]), ("even", ["q2", "q4"])])
def test_questions_are_chosen_by_their_place_in_the_file(
    dataset: Path, position: Position, ids: list[str]
) -> None:
    assert [question.id for question in Dataset.read(dataset, position).questions] == ids


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("corpus.jsonl", "{no json", r"line 8: .*JSON is malformed"),
        ("corpus.jsonl", '{"text": "x"}', r"line 8: .*missing required field `_id`"),
        ("corpus.jsonl", '{"_id": "bees", "text": "x"}', "line 8: the document 'bees' is a duplicate"),
        ("corpus.jsonl", '{"_id": "z", "text": "' + "x" * 1_000_001 + '"}', "line 8: .*1,000,000 characters"),
        ("queries.jsonl", '{"_id": "q1", "text": "x"}', "line 6: the query 'q1' is a duplicate"),
        ("queries.jsonl", '{"_id": "q9", "text": " "}', "line 6: the question is empty"),
        ("queries.jsonl", '{"_id": "q9", "text": "' + "x" * 4_001 + '"}', "line 6: .*4,000 characters"),
        ("qrels/test.tsv", "q1 bees 1", "line 7: three columns"),
        ("qrels/test.tsv", "q8\tbees\t1", "line 7: no line of queries.jsonl has the query 'q8'"),
        ("qrels/test.tsv", "q1\tnone\t1", "line 7: no line of corpus.jsonl has the document 'none'"),
        ("qrels/test.tsv", "q1\ttide\thigh", "line 7: the score is a whole number, not 'high'"),
        ("qrels/test.tsv", "q1\tbees\t1", "line 7: the document 'bees' has been judged"),
    ],
)
def test_a_wrong_line_is_told_with_its_file_and_number(
    dataset: Path, file: str, line: str, said: str
) -> None:
    with (dataset / file).open("a", encoding="utf-8") as appended:
        appended.write(line + "\n")
    with pytest.raises(CliError, match=re.escape(str(dataset / file)) + ", " + said) as told:
        Dataset.read(dataset)
    assert told.value.status is Exit.USAGE


@pytest.mark.parametrize("file", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_a_missing_file_is_named(dataset: Path, file: str) -> None:
    (dataset / file).unlink()
    with pytest.raises(CliError, match=f"{re.escape(file)}: No such file"):
        Dataset.read(dataset)


def test_a_corpus_without_text_is_refused(dataset: Path) -> None:
    (dataset / "corpus.jsonl").write_text('{"_id": "a", "text": ""}\n', "utf-8")
    with pytest.raises(CliError, match=r"corpus\.jsonl: no document in it has any text"):
        Dataset.read(dataset)


def test_without_a_judgement_there_is_nothing_to_ask(dataset: Path) -> None:
    (dataset / "qrels" / "test.tsv").write_text("q1\tbees\t0\n", "utf-8")
    with pytest.raises(CliError, match="none of the queries asked has a relevant document"):
        Dataset.read(dataset)


def test_a_giant_line_is_not_read(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_BYTES", 1024 * 1024)
    with (dataset / "queries.jsonl").open("ab") as appended:
        appended.write(b" " * (1024 * 1024 + 1))
    with pytest.raises(CliError, match=f"line {len(QUERIES) + 1}: longer than 1 MiB"):
        Dataset.read(dataset)


def test_a_file_of_questions_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text("\n", "utf-8")
    with pytest.raises(CliError, match=r"own\.jsonl: no question in it"):
        own_questions(tmp_path / "own.jsonl")
