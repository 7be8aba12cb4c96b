"""`kb check`: it names damaged documents, and rebuilds derived data of the others."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kb_cli.output import Exit
from kb_engine.settings import EngineSettings
from kb_engine.store.sqlite.originals import originals_of
from tests.support import engines
from tests.support.commands import ended
from tests.support.postgres import Database
from tests.unit.cli.conftest import KEY, Kb

TEXT = "# Granite\n\n" + "Granite is hard and grey. " * 80 + "\n\n# Basalt\n\nBasalt is dark."


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, not in use, with a note (document 1) and a file (document 2)."""
    folder = tmp_path_factory.mktemp("sound")
    (folder / "stones.md").write_text(TEXT)
    with engines.engine(folder / "home", api_key=KEY) as url:
        for arguments in (("addnote", TEXT, "--collection", "memory"), ("add", str(folder / "stones.md"))):
            assert ended(*arguments, KB_ENGINE_URL=url, KB_API_KEY=KEY).returncode == Exit.OK
    return folder / "home"


@pytest.fixture
def home(sound: Path, tmp_path: Path) -> Path:
    """A copy of the sound base, for the test to damage."""
    return Path(shutil.copytree(sound, tmp_path / "home"))


def hurt(home: Path, *statements: str) -> None:
    with sqlite3.connect(EngineSettings(home=home).database) as db:
        db.execute("PRAGMA foreign_keys = ON")
        for statement in statements:
            db.execute(statement)
    db.close()


def check(kb: Kb, home: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    status, out, error = kb("check", "--home", str(home), "--embedder", "hash", "--json", *arguments)
    return status, json.loads(out), error


QUERIES = (("basalt", "fts"), ("what is hard and grey", "vector"), ("granite", "hybrid"))


def find(home: Path) -> list[Any]:
    with engines.engine(home, api_key=KEY) as url:
        called = partial(ended, "search", KB_ENGINE_URL=url, KB_API_KEY=KEY)
        return [
            sorted(
                (each["document"]["id"], each["chunk"]["index"], each["chunk"]["text"], each["score"])
                for each in json.loads(called(query, "--mode", mode, "--top", "50", "--json").stdout)[
                    "results"
                ]
            )
            for query, mode in QUERIES
        ]


@pytest.fixture(scope="module")
def found(sound: Path) -> list[Any]:
    """The results in the sound base."""
    return find(sound)


def test_a_sound_base_is_whole(kb: Kb, home: Path) -> None:
    for arguments in ((), ("--deep",), ("--deep", "--repair")):
        assert check(kb, home, *arguments) == (Exit.OK, {"documents": 2, "damage": [], "hurt": []}, "")
    assert kb("check", "--home", str(home), "--embedder", "hash")[1] == "2 documents checked, 0 damaged\n"


@pytest.mark.parametrize(
    ("statement", "number", "fault", "deep"),
    [
        ("DELETE FROM vectors WHERE chunk_id = 1", 1, "a vector is missing", False),
        ("UPDATE vectors SET vector = zeroblob(length(vector)) WHERE chunk_id = 2", 1, "or damaged", False),
        ("UPDATE vectors SET vector = (SELECT vector FROM vectors WHERE chunk_id = 1) WHERE chunk_id = 3",
         1, "not that of its passage", True),
        ("UPDATE chunks SET text = 'other' WHERE id = 2", 1, "not what stands in its text", False),
        ("UPDATE documents SET chunk_count = 9 WHERE id = 2", 2, "counts other passages", False),
        ("DELETE FROM chunks WHERE id = 2", 1, "passages are missing", False),
        ("DELETE FROM chunks WHERE document_id = 1 AND position = (SELECT max(position) FROM chunks "
         "WHERE document_id = 1)", 1, "passages are missing", False),
        ("UPDATE vectors SET vector = x'00' WHERE chunk_id = 1", 1, "a vector is missing or damaged", False),
    ],
)  # fmt: skip
def test_damage_of_derived_data_is_repaired(
    kb: Kb, home: Path, found: list[Any], statement: str, number: int, fault: str, deep: bool
) -> None:
    """Damage is reported without `--repair` and repaired with it; searches then return the same as before."""
    hurt(home, statement)
    flags = ("--deep",) if deep else ()
    if deep:
        assert check(kb, home)[0] == Exit.OK, "a look at the vectors alone does not see it"
    status, answer, error = check(kb, home, *flags)
    assert (status, [each["document_id"] for each in answer["hurt"]]) == (Exit.FAILED, [number])
    assert fault in error
    status, answer, error = check(kb, home, *flags, "--repair")
    assert (status, answer["hurt"][0]["repaired"], error.endswith("repaired\n")) == (Exit.OK, True, True)
    assert check(kb, home, "--deep")[0] == Exit.OK
    assert find(home) == found


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE note_texts SET text = 'other'", "not the one that was sent"),
        ("DELETE FROM chunks WHERE document_id = 2 AND position = 1", "passages are missing"),
        ("UPDATE chunks SET text = 'other' WHERE document_id = 2", "not what stands in its text"),
        ("DELETE FROM note_texts", "its text is gone"),
        (
            "DELETE FROM chunks WHERE document_id = 2 AND position = "
            "(SELECT max(position) FROM chunks WHERE document_id = 2)",
            "passages are missing",
        ),
        (
            "UPDATE chunks SET text = replace(text, 'hard', 'soft') WHERE document_id = 2",
            "not the one that was stored",
        ),
    ],
)
def test_lost_source_data_is_reported_and_not_repaired(
    kb: Kb, home: Path, statement: str, fault: str
) -> None:
    hurt(home, statement)
    status, answer, error = check(kb, home, "--repair")
    assert (status, [each["repaired"] for each in answer["hurt"]]) == (Exit.FAILED, [False])
    assert fault in error
    assert "send the same file or note again" in error
    assert check(kb, home, "--repair")[1] == answer


@pytest.mark.parametrize(
    ("damage", "fault"),
    [(lambda file: file.write_bytes(b"other"), "not the one that was sent"),
     (lambda file: file.unlink(), "its file is missing")],
)  # fmt: skip
def test_a_kept_file_that_is_hurt_is_named(
    kb: Kb, home: Path, damage: Callable[[Path], object], fault: str
) -> None:
    (file,) = originals_of(EngineSettings(home=home).database).iterdir()
    damage(file)
    status, answer, error = check(kb, home, "--repair")
    assert (status, [each["document_id"] for each in answer["hurt"]]) == (Exit.FAILED, [2])
    assert fault in error


@pytest.mark.process
def test_a_base_of_postgresql_is_mended_too(
    kb: Kb, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engines.engine(tmp_path / "home", api_key=KEY, store=database.url) as url:
        monkeypatch.setenv("KB_ENGINE_URL", url)
        kb.note(TEXT)
    monkeypatch.setenv("KB_STORE", database.url)
    assert check(kb, tmp_path / "home", "--deep") == (Exit.OK, {"documents": 1, "damage": [], "hurt": []}, "")

    for table, fault in (("vectors", "a vector is missing"), ("postings", "words are missing")):
        asyncio.run(database.execute(f"DELETE FROM {table} WHERE chunk_id = (SELECT min(id) FROM chunks)"))
        status, answer, error = check(kb, tmp_path / "home", "--repair")
        assert (status, [each["repaired"] for each in answer["hurt"]]) == (Exit.OK, [True])
        assert fault in error
        assert check(kb, tmp_path / "home", "--deep")[0] == Exit.OK


def test_a_kept_version_whose_text_changed_is_named(
    kb: Kb, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engines.engine(home, api_key=KEY) as url:
        monkeypatch.setenv("KB_ENGINE_URL", url)
        assert kb("rm", "2", "--yes")[0] == Exit.OK
    assert check(kb, home)[0] == Exit.OK
    hurt(home, "UPDATE versions SET text = replace(text, 'hard', 'soft')")
    status, answer, error = check(kb, home, "--repair")
    assert (status, [each["document_id"] for each in answer["hurt"]]) == (Exit.FAILED, [2])
    assert "the text of its version 1 is not the one that was kept (the base has no other copy" in error


def test_an_index_of_the_database_is_made_again_from_its_table(kb: Kb, home: Path) -> None:
    with closing(sqlite3.connect(EngineSettings(home=home).database, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = ON")
        sql = "SELECT sql FROM sqlite_schema WHERE name = 'documents_by_content'"
        (whole,) = db.execute(sql).fetchone()
        partial = "UPDATE sqlite_schema SET sql = ? WHERE name = 'documents_by_content'"
        db.execute(partial, (f"{whole} WHERE id > 1",))
        db.execute("PRAGMA writable_schema = RESET")
        db.execute("REINDEX")
        db.execute("PRAGMA writable_schema = ON")
        db.execute(partial, (whole,))
    status, answer, error = check(kb, home)
    assert (status, "missing from index documents_by_content" in error) == (Exit.FAILED, True)
    assert error.endswith("kb check --repair rebuilds derived data and lists the remaining damage\n")
    assert check(kb, home)[1] == answer
    status, answer, error = check(kb, home, "--repair")
    assert (status, answer["damage"], len(answer["mended"])) == (Exit.OK, [], 2)
    assert "repaired (indexes rebuilt from the tables)" in error
    assert check(kb, home) == (Exit.OK, {"documents": 2, "damage": [], "hurt": []}, "")


def test_without_repair_nothing_is_changed(kb: Kb, home: Path) -> None:
    hurt(home, "DELETE FROM chunks WHERE id = 2", "DELETE FROM vectors WHERE chunk_id = 1")

    def dump() -> list[str]:
        with closing(sqlite3.connect(EngineSettings(home=home).database)) as db:
            return [*db.iterdump()]

    before = dump()
    status, _, error = check(kb, home)
    assert (status, "kb check --repair rebuilds" in error) == (Exit.FAILED, True)
    assert dump() == before


def test_repairable_damage_is_repaired_beside_irreparable_damage(kb: Kb, home: Path) -> None:
    """A missing file keeps no vector from being made; a wrong passage does."""
    (file,) = originals_of(EngineSettings(home=home).database).iterdir()
    file.unlink()
    vectors = "(SELECT id FROM chunks WHERE document_id = 2)"
    hurt(home, f"DELETE FROM vectors WHERE chunk_id IN {vectors}")
    status, answer, error = check(kb, home, "--repair")
    (found,) = answer["hurt"]
    assert (status, found["repaired"]) == (Exit.FAILED, False)
    assert found["done"] == ["a vector is missing or damaged (embedded again)"]
    assert found["left"] == ["its file is missing (the base has no other copy of the file)"]
    assert "embedded again): repaired" in error
    hurt(
        home,
        f"DELETE FROM vectors WHERE chunk_id IN {vectors}",
        "UPDATE chunks SET text = replace(text, 'hard', 'soft') WHERE document_id = 2",
    )
    _, answer, _ = check(kb, home, "--repair")
    assert answer["hurt"][0]["done"] == []
    assert "a vector is missing or damaged (the passages are to be right first)" in answer["hurt"][0]["left"]


def test_a_base_with_a_damaged_vector_is_opened_and_its_status_names_the_repair(
    kb: Kb, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurt(home, "UPDATE vectors SET vector = x'00' WHERE chunk_id = 1")
    with engines.engine(home, api_key=KEY) as url:
        monkeypatch.setenv("KB_ENGINE_URL", url)
        (issue,) = kb.json("status")["issues"]
        assert ("1 passages have no vector" in issue, "kb check --repair" in issue) == (True, True)
    assert check(kb, home, "--repair")[0] == Exit.OK
    with engines.engine(home, api_key=KEY) as url:
        monkeypatch.setenv("KB_ENGINE_URL", url)
        assert not kb.json("status").get("issues")


def test_a_base_in_use_or_of_another_model_is_not_checked(
    kb: Kb, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engines.engine(home, api_key=KEY):
        status, _, error = kb("check", "--home", str(home), "--embedder", "hash")
        assert (status, "is using it" in error) == (Exit.FAILED, True)
    hurt(home, "UPDATE meta SET value = 'other' WHERE name = 'embedder'")
    status, _, error = kb("check", "--home", str(home), "--embedder", "hash")
    assert (status, "kb reindex" in error) == (Exit.FAILED, True)


def test_a_base_that_is_not_there_is_refused_and_not_made(kb: Kb, tmp_path: Path) -> None:
    home = tmp_path / "misspelt"
    status, out, error = kb("check", "--home", str(home), "--embedder", "hash")
    assert (status, out, "there is none" in error, home.exists()) == (Exit.FAILED, "", True, False)


@pytest.mark.process
def test_a_database_that_no_engine_has_used_is_no_base(
    kb: Kb, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KB_STORE", database.url)
    status, out, error = kb("check", "--home", str(tmp_path / "home"), "--embedder", "hash")
    assert (status, out, "no engine has used it" in error) == (Exit.FAILED, "", True)
