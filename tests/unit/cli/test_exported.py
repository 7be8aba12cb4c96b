"""`kb export` and `kb import`: a base as text files, and a second base with the same responses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kb_cli.exported import layout
from kb_cli.output import Exit
from kb_contracts.api import models as m
from kb_load.processes import free_port
from tests.support.contract_objects import chunk_with, detail_of, document_with
from tests.unit.cli.conftest import Kb
from tests.unit.cli.whole_bases import EXAMPLES, NOTE, answers, check_same, documents, fill, running


def exported(kb: Kb, folder: Path, *arguments: str) -> Any:
    return kb.json("export", str(folder), *arguments)


def import_(kb: Kb, folder: Path, home: Path) -> tuple[int, str, str]:
    return kb("import", str(folder), "--home", str(home), "--embedder", "hash")


@pytest.mark.process
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_base_made_of_an_export_answers_as_the_first(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, kind: str
) -> None:
    """Chunks, scores, pages, headings, tags, sources, metadata, versions, times, uids, citations, files."""
    with running(tmp_path / "one", monkeypatch) as http:
        fill(kb, http)
        expected, held = answers(http), documents(http)
        assert exported(kb, tmp_path / "out")["documents"] == len(held) == 6
    store = request.getfixturevalue("database").url if kind == "postgres" else ""
    monkeypatch.setenv("KB_STORE", store)
    assert import_(kb, tmp_path / "out", tmp_path / "two") == (Exit.OK, "6 documents imported\n", "")
    with running(tmp_path / "two", monkeypatch, store=store) as http:
        assert documents(http) == held
        check_same(answers(http), expected)
        for each in http.get("/api/v1/documents").json()["documents"]:
            if each["filename"]:
                original = http.get(f"/api/v1/documents/{each['id']}/original")
                assert original.content == (EXAMPLES / each["filename"]).read_bytes()
        for answer in expected:
            for result in answer["results"]:
                checked = http.post("/api/v1/citations/check", json=result["citation"]).json()
                assert checked["status"] == "there"
        note = http.get("/api/v1/documents/6", params={"text": "true"}).json()
        assert (note["text"], note["version"]) == (NOTE + "!", held[-1]["version"])
        described = http.get("/collections").json()["collections"]
        assert [each["description"] for each in described if each["name"] == "memory"] == ["What users say"]
        kb.note("A note that comes later is found beside them")
        assert kb.json("search", "comes later")["results"][0]["document"]["id"] == 7


def test_files_that_are_kept_are_written_beside_and_come_back(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Originals are imported even if the new base keeps no new ones; a changed original is refused."""
    data = b'{"name": "granite"}'
    (tmp_path / "odd name.json").write_bytes(data)
    with running(tmp_path / "one", monkeypatch):
        kb("add", str(tmp_path / "odd name.json"), "--collection", "stones")
        exported(kb, tmp_path / "out")
    (kept,) = (tmp_path / "out" / "stones" / "originals").iterdir()
    assert (kept.name, kept.read_bytes()) == ("odd-name-1.json", data)
    assert import_(kb, tmp_path / "out", tmp_path / "two")[0] == Exit.OK
    with running(tmp_path / "two", monkeypatch, keep_originals=False) as http:
        assert http.get("/api/v1/documents/1/original").content == data
    assert list((tmp_path / "two" / "engine" / "spool").iterdir()) == []
    kept.write_bytes(b"other")
    status, _, error = import_(kb, tmp_path / "out", tmp_path / "three")
    assert (status, "is not the file that was sent" in error) == (Exit.PARTLY, True)


@pytest.mark.process
def test_a_passage_within_a_table_is_shown_below_its_header_row_and_comes_back(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f"{number},quarry {number},{7 * number} t\n" for number in range(200))
    (tmp_path / "fees.csv").write_text(f"No,Name,Load\n{rows}")
    found = []
    for home in ("one", "two"):
        with running(tmp_path / home, monkeypatch):
            if home == "one":
                kb("add", str(tmp_path / "fees.csv"))
                exported(kb, tmp_path / "out")
            passages = kb.json("get", "1")["chunks"]
            found.append([(each["heading"], each.get("table_header"), each["text"]) for each in passages])
            assert "\n   | No | Name | Load |\n   | " in kb("search", "quarry 150", "--fts-only", "--full")[1]
            (best, *_) = kb.json("search", '"name load" 150')["results"]
            assert "without_phrase" not in best
        if home == "one":
            import_(kb, tmp_path / "out", tmp_path / "two")
    assert found[0] == found[1]
    assert [each[:2] for each in found[0]] == [(None, None), *[(None, "| No | Name | Load |")] * 5]


@pytest.mark.process
def test_an_import_is_repeated_without_harm_and_goes_on(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "one", monkeypatch) as http:
        fill(kb, http)
        exported(kb, tmp_path / "out")
        held = documents(http)
    assert import_(kb, tmp_path / "out", tmp_path / "one")[1] == "0 documents imported, 6 are here already\n"
    import_(kb, tmp_path / "out", tmp_path / "two")
    with running(tmp_path / "two", monkeypatch):
        kb("rm", "3", "--yes")
    assert import_(kb, tmp_path / "out", tmp_path / "two")[1] == "1 document imported, 5 are here already\n"
    with running(tmp_path / "two", monkeypatch) as http:
        assert sorted(documents(http), key=str) == sorted(held, key=str)


def test_an_import_leaves_existing_documents_unchanged(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A duplicate is the same text in the same collection, or a source path with another text."""
    with running(tmp_path / "one", monkeypatch):
        kb.note("granite", "--collection", "memory")
        kb.note("basalt", "--collection", "memory", "--source-path", "stones.md")
        kb.note("basalt", "--collection", "documents")
        exported(kb, tmp_path / "out")
    with running(tmp_path / "two", monkeypatch):
        kb.note("granite", "--collection", "memory")
        kb.note("gneiss", "--collection", "memory", "--source-path", "stones.md")
    assert import_(kb, tmp_path / "out", tmp_path / "two")[1] == "1 document imported, 2 are here already\n"
    with running(tmp_path / "two", monkeypatch):
        assert len(kb.json("search", "gneiss", "--mode", "fts")["results"]) == 1
        assert len(kb.json("search", "basalt", "--mode", "fts")["results"]) == 1


def test_documents_of_an_export_that_have_the_same_text_stay_apart(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates or other deduplication scopes can lead to that; a second import changes nothing."""
    with running(tmp_path / "one", monkeypatch) as http:
        kb.note("granite", "--collection", "memory", "--source-path", "a.md", "--title", "One")
        kb.note("basalt", "--collection", "memory", "--source-path", "b.md", "--tags", "lava")
        assert http.patch("/api/v1/notes/2", json={"text": "granite"}).status_code == 200
        for scope in "st":
            note = {"text": "gneiss", "dedup_scope": scope, "source_path": "c.md"}
            job = http.post("/api/v1/jobs", json=note).json()["id"]
            assert http.get(f"/api/v1/jobs/{job}", params={"wait": 30}).json()["status"] == "completed"
        held = documents(http)
        assert exported(kb, tmp_path / "out")["documents"] == len(held) == 4
    assert import_(kb, tmp_path / "out", tmp_path / "two") == (Exit.OK, "4 documents imported\n", "")
    assert import_(kb, tmp_path / "out", tmp_path / "two")[1] == "0 documents imported, 4 are here already\n"
    with running(tmp_path / "two", monkeypatch) as http:
        assert documents(http) == held
        kb("rm", "1", "--yes")
    assert import_(kb, tmp_path / "out", tmp_path / "two")[1] == "1 document imported, 3 are here already\n"


@pytest.mark.process
def test_a_collection_is_exported_alone_and_read_by_people(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "one", monkeypatch) as http:
        fill(kb, http)
        assert exported(kb, tmp_path / "out", "--collection", "memory")["documents"] == 1
        text = tmp_path / "out/memory/What-the-user-prefers-6.md"
        assert text.read_bytes().decode() == NOTE + "!"
        exported(kb, tmp_path / "all")
        status, _, error = kb("export", str(tmp_path / "out"))
        assert (status, "name a new folder" in error) == (Exit.FAILED, True)
    (bees,) = (tmp_path / "all/documents").glob("honey-bees.docx-*.md")
    assert "## The colony\n\nA colony in summer" in bees.read_text()
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700


CHANGES: tuple[tuple[Callable[[Path], Any], str], ...] = (
    (lambda out: (out / "kb-export.json").unlink(), "not a complete export"),
    (lambda out: (out / "kb-export.json").write_text("{}"), "missing required field"),
    (lambda out: edit(out / "kb-export.json", format=2), "Use a later kb"),
    (lambda out: edit(out / "kb-export.json", documents=9), "has 1 of 9 exported documents"),
    (lambda out: next(out.glob("*/*.md")).write_text("other"), "was changed since"),
    (lambda out: next(out.glob("*/*.md")).unlink(), "No such file"),
    (lambda out: edit_one(out, tags=["a/b"]), "tags"),
    (lambda out: edit_one(out, uid="../../etc"), "uid"),
    (lambda out: edit_one(out, created_at="2026-13-01T00:00:00Z"), "month"),
    (lambda out: edit_one(out, created_at="2026-01-01"), "without a zone"),
    (lambda out: edit_one(out, passages=[{"start": 0, "end": 99, "page": None, "heading": None}]), "within"),
    (lambda out: edit_one(out, passages=[{"start": 3, "end": 3, "page": None, "heading": None}]), "within"),
    (lambda out: next(out.glob("*/*.json")).write_text("[" * 100_000), "json"),
    (lambda out: next(out.glob("*/*.json")).write_bytes(b'{"uid": "\xff"}'), "json"),
)


def test_an_incomplete_or_changed_export_is_refused_by_name(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    with running(tmp_path / "one", monkeypatch):
        kb.note("granite")
        exported(kb, tmp_path / "out")
    for number, (change, words) in enumerate(CHANGES):
        changed = shutil.copytree(tmp_path / "out", tmp_path / f"changed-{number}")
        with subtests.test(number=number, words=words):
            change(changed)
            status, out, error = import_(kb, changed, tmp_path / f"imported-{number}")
            assert status in (Exit.FAILED, Exit.PARTLY)
            assert words in error
            assert "1 document imported" not in out or "9 exported" in error


def test_a_document_with_more_tags_than_it_may_have_is_imported(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier engines accepted such documents."""
    tags = [f"t{number}" for number in range(m.MAX_TAGS + 1)]
    with running(tmp_path / "one", monkeypatch):
        kb.note("granite")
        exported(kb, tmp_path / "out")
    edit_one(tmp_path / "out", tags=tags)
    assert import_(kb, tmp_path / "out", tmp_path / "two")[0] == Exit.OK
    with running(tmp_path / "two", monkeypatch) as http:
        assert http.get("/api/v1/documents/1").json()["tags"] == tags


def edit(path: Path, **members: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def edit_one(out: Path, **members: Any) -> None:
    edit(next(out.glob("*/*.json")), **members)


def test_a_base_in_use_is_not_imported_into(kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "one", monkeypatch):
        kb.note("granite")
        exported(kb, tmp_path / "out")
        status, _, error = import_(kb, tmp_path / "out", tmp_path / "one")
    assert (status, error.count("\n"), "is using it" in error) == (Exit.FAILED, 1, True)


def test_an_engine_that_is_away_leaves_no_folder_of_an_export(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KB_ENGINE_URL", f"http://127.0.0.1:{free_port()}")
    status, _, error = kb("export", str(tmp_path / "out"))
    assert (status, "no engine answers" in error) == (Exit.UNREACHABLE, True)
    assert not (tmp_path / "out").exists()


def test_passages_that_are_no_parts_of_a_text_are_not_exported() -> None:
    detail = detail_of(document_with(), [chunk_with(text="granite", end=3)])
    with pytest.raises(layout.NotAnExport, match="no parts of one text"):
        layout.text_of(detail, detail.chunks)
