"""How SQLite reads what collections add up: from indexes alone, whatever the documents' metadata weigh."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from kb_engine.store.repository import collections
from kb_engine.store.sqlite.connection import SqliteRead
from kb_engine.store.sqlite.schema import migrate


@pytest.mark.parametrize("condition", ["tag > ? AND tag < ?", "tag = ?"])
def test_the_figures_come_from_indexes_alone(tmp_path: Path, condition: str) -> None:
    path = tmp_path / "kb.db"
    db = apsw.Connection(str(path))
    migrate(db, path)
    values = ("collection:", "collection;")[: condition.count("?")]
    sql = "EXPLAIN QUERY PLAN " + collections.STATISTICS.format(
        index=SqliteRead.statistics_index, condition=condition
    )
    plan = [row[3] for row in db.execute(sql, values)]
    db.close()
    assert [step.split("(")[0].strip() for step in plan] == [
        "SEARCH document_tags USING COVERING INDEX document_tags_by_tag",
        "SEARCH d USING COVERING INDEX documents_figures",
    ]


def test_names_are_found_from_one_to_the_next(tmp_path: Path) -> None:
    """A collection costs one look, however many documents are in it."""
    path = tmp_path / "kb.db"
    db = apsw.Connection(str(path))
    migrate(db, path)
    plan = [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + collections.NAMES, ("a", "b", "b"))]
    db.close()
    assert all("COVERING INDEX document_tags_by_tag" in step for step in plan if "document_tags" in step)
    assert not any(step.startswith("SCAN document_tags") for step in plan)
