"""A small dataset in BEIR's layout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

DOCUMENTS = {
    "bees": ("Honey bees", "Honey bees keep warm in winter: they form a cluster and shiver."),
    "rust": ("", "Iron rusts where water and oxygen reach it; zinc protects iron."),
    "loan": ("Loans", "A mortgage is a loan that a house secures. The bank may sell the house."),
    "tide": ("Tides", "The moon and the sun raise tides; at new moon they are highest."),
    "empty": ("", " "),
    "title": ("Glaciers move slowly downhill", ""),
    "twin": ("Twins", "Iron rusts where water and oxygen reach it; zinc protects iron."),
}
QUERIES = {
    "q1": "how do honey bees keep warm in winter",
    "q2": "iron rusts oxygen",
    "q3": "what is a mortgage that a house secures",
    "q4": "glaciers move downhill",
    "q5": "never judged",
}
JUDGED = [("q1", "bees", 2), ("q2", "rust", 1), ("q2", "tide", 0), ("q3", "loan", 1), ("q4", "title", 1)]


def write_lines(path: Path, lines: Iterable[Mapping[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def write_dataset(folder: Path) -> Path:
    documents = [{"_id": id_, "title": title, "text": text} for id_, (title, text) in DOCUMENTS.items()]
    write_lines(folder / "corpus.jsonl", documents)
    write_lines(folder / "queries.jsonl", [{"_id": id_, "text": text} for id_, text in QUERIES.items()])
    rows = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in JUDGED)]
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("\n".join(rows) + "\n", "utf-8")
    return folder


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "dataset")
