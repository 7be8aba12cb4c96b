"""`kb eval` on a scratch base and on a running engine."""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
from pathlib import Path

import pytest

from kb_cli.evaluation.bases import scratch_base
from kb_cli.evaluation.proposals import worst
from kb_cli.evaluation.runs import Answered, Judged
from kb_cli.output import Exit
from kb_contracts.api import models as m
from tests.unit.cli.conftest import Kb
from tests.unit.cli.evaluation.conftest import write_lines


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_dataset_is_measured_on_a_base_that_is_gone_afterwards(
    kb: Kb, dataset: Path, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole run: figures as JSON, the results of each question, and a comparison."""
    monkeypatch.delenv("KB_ENGINE_URL")
    monkeypatch.setenv("KB_STORE", "sqlite:not-to-be-touched")
    nothing = write_lines(tmp_path / "nothing.jsonl", [{"question": "zyx wvu"}])
    output = tmp_path / "run.jsonl"
    found = kb.json(
        "eval", str(dataset), "--embedder", "hash", "--unanswerable", str(nothing),
        "--output", str(output),
    )  # fmt: skip
    assert list(found) == ["hybrid", "fts", "vector"]
    for figures in found.values():
        assert figures["questions"] == 4
        for metric in ("ndcg@10", "recall@100", "mrr@10"):
            low, high = figures["intervals"][metric]
            assert 0 <= low <= figures[metric] <= high <= 1
        assert 0 < figures["latency_ms"]["p50"] <= figures["latency_ms"]["p95"]
    # Each question has words that only its document and that document's twin contain.
    assert found["fts"]["ndcg@10"] > 0.9
    assert found["fts"]["recall@100"] == 1.0
    assert (found["fts"]["weak"]["missed"], found["fts"]["weak"]["unanswerable"]) == (0.0, 1)
    assert sum(found["hybrid"]["parts"]["relevant"].values()) == 4
    lines = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert [line["id"] for line in lines[:4]] == ["q1", "q2", "q3", "q4"]
    assert {"rust", "twin"} == set(lines[1]["modes"]["fts"]["documents"][:2])
    assert list(scratch.iterdir()) == []
    assert not Path("not-to-be-touched").exists()
    same = kb.json("eval", "--compare", str(output), str(output))
    assert (same["hybrid"]["questions"], same["hybrid"]["metrics"]["ndcg@10"]["interval"]) == (4, [0.0, 0.0])
    status, out, err = kb("eval", "--compare", str(output), str(output))
    assert (status, err) == (Exit.OK, "")
    assert "hybrid\tndcg@10\t+0.000 (+0.000 to +0.000)" in out


def _end_process(scratch: Path) -> None:
    assert len(list(scratch.iterdir())) == 1
    signal.raise_signal(signal.SIGTERM)


def test_a_scratch_base_goes_when_the_process_is_told_to_end(scratch: Path) -> None:
    options = argparse.Namespace(config=None, embedder="hash")
    with pytest.raises(KeyboardInterrupt), scratch_base(options):
        _end_process(scratch)
    assert list(scratch.iterdir()) == []


def test_own_questions_are_asked_of_a_running_engine(kb: Kb, tmp_path: Path) -> None:
    bees = kb.note("Honey bees form a cluster and shiver", "--title", "Bees")
    kb.note("Zinc protects iron from rust", "--source-path", "/notes/rust.txt")
    own: list[dict[str, object]] = [
        {"question": "honey bees cluster", "document": bees},
        {"question": "zinc iron", "document": "/notes/rust.txt"},
        {"question": "bees shiver", "document": "Bees"},
    ]
    file = str(write_lines(tmp_path / "own.jsonl", own))
    status, out, err = kb("eval", file, "--queries", "even")
    assert (status, err) == (Exit.OK, "")
    assert out.splitlines()[2].startswith("fts\t1.000 (1.000 to 1.000)")
    assert "up to 10 words\t1\t" in out


def test_the_headings_of_a_base_are_its_questions(kb: Kb, tmp_path: Path) -> None:
    """Headings of one word, and those of several documents, are left out."""
    kb.note("# Winter cluster\n\nHoney bees shiver.", "--title", "Notes of mine")
    kb.note("# Zinc coating\n\nIt protects iron.", "--title", "Notes of mine")
    kb.note("# Tides\n\nThe moon raises them.", "--title", "Tides")
    output = tmp_path / "run.jsonl"
    found = kb.json("eval", "--from-base", "--output", str(output))
    questions = {json.loads(line)["question"] for line in output.read_text("utf-8").splitlines()}
    assert {"Winter cluster", "Zinc coating"} <= questions
    assert not questions & {"Notes of mine", "Tides"}
    assert found["figures"]["fts"]["questions"] == len(questions)
    status, out, err = kb("eval", "--from-base", "--questions", "1")
    assert (status, err) == (Exit.OK, "")
    assert "up to 10 words\t1\t" in out


def test_the_worst_questions_have_their_reasons() -> None:
    found: list[tuple[m.Mode, float, list[str]]] = [
        ("hybrid", 0.5, ["2", "1"]),
        ("fts", 1.0, ["1"]),
        ("vector", 0.0, ["2"]),
    ]
    modes: dict[m.Mode, Answered] = {
        mode: Answered({"ndcg@10": score}, documents, 1.0, weak=False) for mode, score, documents in found
    }
    behind = Judged("1", "zinc coating", {"1": 1}, modes)
    absent = Judged(
        "2", "iron", {"3": 1}, {**modes, "hybrid": Answered({"ndcg@10": 0.0}, ["2"], 1.0, weak=False)}
    )
    first, second = worst([behind, absent], {"1": "Rust", "2": "Bees", "3": "Iron"})
    assert (first.document, first.reason) == (
        "Iron",
        "beyond rank 10 by words and by meaning; “Bees” is first",
    )
    assert (second.document, second.reason) == ("Rust", "at rank 2; “Bees” is first")


@pytest.mark.process
def test_figures_are_drawn(kb: Kb, tmp_path: Path) -> None:
    """A process test because matplotlib is slow to import."""
    note = kb.note("Honey bees form a cluster and shiver")
    file = write_lines(tmp_path / "own.jsonl", [{"question": "honey bees cluster", "document": note}])
    plot = tmp_path / "plot.png"
    kb.json("eval", str(file), "--plot", str(plot))
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("document", "said"),
    [("nowhere.txt", "line 1: no document of the base has"), (None, "line 1: it names no document")],
)
def test_an_expected_document_is_one_of_the_base(
    kb: Kb, tmp_path: Path, document: str | None, said: str
) -> None:
    file = write_lines(tmp_path / "own.jsonl", [{"question": "zinc", "document": document}])
    status, _, err = kb("eval", str(file))
    assert status == Exit.USAGE
    assert said in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a dataset"),
        (["missing"], "missing: No such file"),
        (["."], "corpus.jsonl: No such file"),
        ([".", "--engine", "http://127.0.0.1:1"], "a base of its own"),
        (["own.jsonl", "--embedder", "hash"], "a running engine has its embedder"),
        ([".", "--output", "none/run.jsonl"], "none/run.jsonl: there is no such folder"),
        ([".", "--compare", "a", "b"], "and no dataset"),
        (["--compare", "a", "b"], "a: No such file"),
        ([".", "--from-base"], "takes no dataset"),
        ([".", "--unanswerable", "none"], "none: No such file"),
    ],
)
def test_invalid_arguments_of_eval_are_refused_before_the_run(
    kb: Kb, arguments: list[str], said: str
) -> None:
    status, out, err = kb("eval", *arguments)
    assert (status, out) == (Exit.USAGE, "")
    assert said in err
