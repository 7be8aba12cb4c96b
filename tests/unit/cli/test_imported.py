"""`kb import` of files written by other programs, into a real engine.

`imported/basic-memory` was written by basic-memory 0.16.3 (`basic-memory tool write-note`), and
`imported/mcp-memory-service/export.json` by the exporter of mcp-memory-service 12.2.0.
"""

from __future__ import annotations

import json
import os
import shutil
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest

from kb_cli.imported import markdown
from kb_cli.imported.memories import LARGEST
from kb_cli.output import Exit
from kb_readers import front_matter
from tests.unit.cli.conftest import Kb

THEIRS = Path(__file__).parent / "imported"
EXPORT = THEIRS / "mcp-memory-service/export.json"
NOTE = """\
---
title: Why the bridge sways
tags: [engineering, bridges/rope, "#wind"]
aliases:
  - Swaying
created: 2026-01-02
date modified: 2026-02-03T04:05:06
rating: 5
due: 12:30
---
# The bridge

See [[Rope#Knots|knots]] and ![[plan.txt]]. It is #urgent, not #42, not `#code`, nor a#b or [x](#here).

```sh
#!/bin/sh #shell
```
    #indented
"""
_names = count(1)


@pytest.fixture
def collection() -> str:
    """A collection that no other test uses."""
    return f"imported-{next(_names)}"


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    root = tmp_path / "vault"
    write(root / ".obsidian/app.json", "{}")
    write(root / ".obsidian/plugin.md", "a setting")
    write(root / ".trash/old.md", "thrown away")
    write(root / "Bridges/Sway.md", NOTE)
    write(root / "Rope.md", "---\ntags: rope, hemp\n---\nHemp is strong.\n")
    write(root / "attachments/plan.txt", "The plan of the bridge")
    write(root / "board.canvas", "{}")
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def imported(kb: Kb, place: Path, collection: str, *arguments: str) -> dict[str, Any]:
    return dict(kb.json("import", str(place), "--collection", collection, *arguments))


def outcomes(answer: dict[str, Any]) -> dict[str, str]:
    return {Path(each["path"]).name: each["outcome"] for each in answer["results"]}


def held(kb: Kb, collection: str) -> dict[str, Any]:
    listed = kb.json("get", "--collection", collection)["documents"]
    for each in listed:
        each["tags"] = sorted(set(each["tags"]) - {f"collection:{collection}"})
    return {each["title"]: each for each in listed}


@pytest.mark.process
def test_a_vault_of_obsidian_is_taken_in_with_its_tags_titles_and_dates(
    kb: Kb, vault: Path, collection: str
) -> None:
    answer = imported(kb, vault, collection)
    assert answer["kind"] == "obsidian"
    assert outcomes(answer) == {"Sway.md": "added", "Rope.md": "added", "plan.txt": "added"}
    assert answer["skipped"] == 1
    found = held(kb, collection)
    sway, rope, plan = found["Why the bridge sways"], found["Rope"], found["plan.txt"]
    assert sway["tags"] == ["engineering", "indented", "urgent", "wind"]
    assert sway["source_paths"] == [str(vault / "Bridges/Sway.md")]
    assert sway["metadata"] == {
        "imported_from": "obsidian",
        "path": "Bridges/Sway.md",
        "aliases": ["Swaying"],
        "created": "2026-01-02",
        "updated": "2026-02-03T04:05:06",
        "tags_left_out": ["bridges/rope"],
        "properties": {"rating": "5", "due": "12:30"},
    }
    assert (rope["tags"], plan["metadata"]["path"]) == (["hemp", "rope"], "attachments/plan.txt")
    reasons = [each["reason"] for each in answer["results"] if each["reason"]]
    assert reasons == ["tags left out: bridges/rope"]
    passages = kb.json("search", "knots", "--collection", collection, "--mode", "fts")["results"]
    assert "See [[Rope#Knots|knots]] and ![[plan.txt]]." in passages[0]["chunk"]["text"]


def test_sync_and_a_second_import_find_imported_files_unchanged(kb: Kb, vault: Path, collection: str) -> None:
    imported(kb, vault, collection)
    before = held(kb, collection)
    again = imported(kb, vault, collection)
    assert (again["results"], again["unchanged"]) == ([], 3)
    plan = kb.json("sync", str(vault), "--collection", collection, "--dry-run")
    assert (plan["unchanged"], plan["added"], plan["replaced"], plan["removed"]) == (3, [], [], [])
    write(vault / "Rope.md", "---\ntags: sisal\n---\nSisal is cheap.\n")
    (vault / "attachments/plan.txt").unlink()
    assert outcomes(imported(kb, vault, collection)) == {"Rope.md": "replaced"}
    after = held(kb, collection)
    assert after["Rope"]["id"] == before["Rope"]["id"]
    assert "plan.txt" in after


def test_a_folder_of_basic_memory_keeps_permalinks_types_and_relations(kb: Kb, collection: str) -> None:
    answer = imported(kb, THEIRS / "basic-memory", collection)
    assert (answer["kind"], set(outcomes(answer).values())) == ("basic-memory", {"added"})
    found = held(kb, collection)
    assert set(found) == {"Coffee brewing", "Tea", "Search ADR"}
    coffee = found["Coffee brewing"]
    assert coffee["tags"] == ["brewing", "clarity", "coffee", "water"]
    assert coffee["metadata"] == {
        "imported_from": "basic-memory",
        "path": "drinks/Coffee brewing.md",
        "type": "note",
        "permalink": "drinks/coffee-brewing",
        "relations": [
            {"type": "relates_to", "to": "Tea"},
            {"type": "is better than", "to": "Instant Coffee"},
        ],
        "tags_left_out": ["drinks/hot"],
    }
    assert found["Search ADR"]["metadata"]["relations"] == [{"type": "implements", "to": "Roadmap 2026"}]


def test_memories_of_mcp_memory_service_become_notes(kb: Kb, collection: str) -> None:
    answer = imported(kb, EXPORT, collection)
    assert answer["kind"] == "mcp-memory-service"
    assert [each["outcome"] for each in answer["results"]] == ["added"] * 3
    found = {each["metadata"]["content_hash"]: each for each in held(kb, collection).values()}
    written = json.loads(EXPORT.read_text())["memories"]
    for memory in written:
        note = found[memory["content_hash"]]
        text = kb.json("get", str(note["id"]))["chunks"][0]["text"]
        assert (note["doc_type"], text) == ("note", memory["content"])
    release = found[written[0]["content_hash"]]
    assert release["tags"] == ["project:atlas"]
    assert release["metadata"] == {
        "imported_from": "mcp-memory-service",
        "memory_type": "decision",
        "content_hash": written[0]["content_hash"],
        "store": "default",
        "created": "2026-09-21T14:13:20.250000Z",
        "updated": "2026-09-21T14:15:00.500000Z",
        "tags_left_out": ["release/2.4"],
        "metadata": {"confidence": 0.9, "meeting": {"room": "Cedar"}},
    }
    again = imported(kb, EXPORT, collection)
    assert [each["outcome"] for each in again["results"]] == ["already there"] * 3
    assert len(held(kb, collection)) == 3


def test_memories_go_into_the_collection_memory_unless_another_is_named(kb: Kb, tmp_path: Path) -> None:
    memory = {"content": "Basalt is found at the coast", "embedding": [0.5, 0.25], "tags": "stone, coast"}
    export = tmp_path / "dashboard.json"
    export.write_text(json.dumps({"export_date": "2026-01-01", "total_memories": 1, "memories": [memory]}))
    (result,) = kb.json("import", str(export), "--tags", "theirs")["results"]
    assert sorted(kb.tags(result["document_id"])) == ["coast", "collection:memory", "stone", "theirs"]


@pytest.mark.parametrize("place", ["vault", "basic-memory", "export"])
def test_a_dry_run_of_an_import_lists_files_and_sends_no_document(
    kb: Kb, vault: Path, collection: str, place: str
) -> None:
    source = {"vault": vault, "basic-memory": THEIRS / "basic-memory", "export": EXPORT}[place]
    planned = imported(kb, source, collection, "--dry-run")
    assert (len(planned["planned"]), planned["unchanged"], planned["refused"]) == (3, 0, [])
    assert any(each["notes"] for each in planned["planned"])
    assert held(kb, collection) == {}
    status, out, _ = kb("import", str(source), "--collection", collection, "--dry-run")
    assert (status, out.splitlines()[-1]) == (Exit.OK, "3 to send, 0 unchanged, 0 refused")


def test_the_kind_of_an_imported_folder_is_detected_and_printed(
    kb: Kb, vault: Path, collection: str, tmp_path: Path
) -> None:
    """A vault with notes of basic-memory counts as basic-memory; a folder of neither kind is refused."""
    shutil.copytree(THEIRS / "basic-memory", vault / "notes")
    _, out, _ = kb("import", str(vault), "--collection", collection, "--dry-run")
    assert out.splitlines()[0] == f"{vault} is a folder of basic-memory"
    plain = tmp_path / "plain"
    write(plain / "one.md", "Plain text")
    status, _, error = kb("import", str(plain))
    assert (status, "--from" in error) == (Exit.FAILED, True)
    assert outcomes(imported(kb, plain, collection, "--from", "obsidian")) == {"one.md": "added"}
    assert kb("import", str(tmp_path / "nowhere"))[0] == Exit.USAGE
    assert kb("import", str(EXPORT), "--from", "obsidian")[0] == Exit.USAGE


BOMB = "a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nc: [*b, *b, *b, *b]"


def test_a_note_with_bad_front_matter_is_taken_in_as_text(kb: Kb, tmp_path: Path, collection: str) -> None:
    """The error is reported, and the other files are imported."""
    bad = (
        (BOMB, "aliases"),
        ("{{ title: a }}", "unhashable"),
        ("title: {{date}}", "unhashable"),
        ("title: [", "expected"),
        ("a: " + "[" * 5_000, "nested"),
        ('title: "a\\0b"', "invalid characters"),
        ('title: "\\ud800"', "invalid characters"),
        ("? [a, b]\n: c", "unhashable"),
    )
    for number, (source, _) in enumerate(bad):
        write(tmp_path / f"vault/bad {number}.md", f"---\n{source}\n---\nText {number} of the note #kept\n")
    write(tmp_path / "vault/good.md", "---\ntags: good\n---\nAnother text")
    *results, good = imported(kb, tmp_path / "vault", collection, "--from", "obsidian")["results"]
    assert [each["outcome"] for each in (*results, good)] == ["added"] * (len(bad) + 1)
    for each, (source, words) in zip(results, bad, strict=True):
        assert words in each["reason"], source
    found = held(kb, collection)
    assert {found[f"bad {number}"]["tags"][0] for number in range(len(bad))} == {"kept"}
    assert found["good"]["tags"] == ["good"]


def test_tags_in_yaml_are_data_and_make_nothing() -> None:
    assert front_matter.read("x: !!python/object/apply:os.system ['true']") == {"x": ["true"]}


@pytest.mark.process
def test_hostile_files_are_named_and_the_others_taken(kb: Kb, vault: Path, collection: str) -> None:
    """Links out of the folder, invalid UTF-8, too many tags, front matter larger than metadata may be."""
    secret = vault.parent / "secret.md"
    secret.write_text("The key of the house")
    (vault / "link.md").symlink_to(secret)
    (vault / "folder").symlink_to(vault.parent, target_is_directory=True)
    (vault / "latin.md").write_bytes(b"---\ntags: [caf\xe9]\n---\nCaf\xe9 au lait\n")
    write(
        vault / "many.md",
        "---\nlist: [" + "é, " * 15_000 + "x]\n---\nMany " + " ".join(f"#t{n}" for n in range(99)),
    )
    os.mkfifo(vault / "pipe.md")
    answer = imported_partly(kb, vault, collection)
    results = {Path(each["path"]).name: each for each in answer["results"]}
    assert (results["link.md"]["outcome"], results["link.md"]["reason"]) == (
        "failed",
        "it leads out of the folder by a link",
    )
    assert "no UTF-8" in results["latin.md"]["reason"]
    assert "too large" in results["many.md"]["reason"]
    assert "tags left out: t63" in results["many.md"]["reason"]
    assert {"Sway.md", "Rope.md", "plan.txt"} < set(results)
    found = held(kb, collection)
    assert (len(found["many"]["tags"]), "secret" in found) == (63, False)
    assert not kb.json("search", "house", "--collection", collection, "--mode", "fts")["results"]


def imported_partly(kb: Kb, place: Path, collection: str) -> dict[str, Any]:
    status, out, _ = kb("import", str(place), "--collection", collection, "--json")
    assert status == Exit.PARTLY
    return dict(json.loads(out))


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ({"content": ""}, "no text"),
        ({"content": " \n"}, "no text"),
        ({"content": "x" * 1_000_001}, "as a file"),
        ({"text": "another member"}, "content"),
        ({"content": ["a list"]}, "str"),
        ([], "object"),
        ({"content": "x", "tags": {"a": 1}}, "tags"),
    ],
)
def test_a_memory_that_cannot_be_taken_is_named_by_its_number(
    kb: Kb, tmp_path: Path, collection: str, memory: Any, words: str
) -> None:
    export = tmp_path / "export.json"
    export.write_text(json.dumps({"export_metadata": {}, "memories": [memory, {"content": "Slate splits"}]}))
    first, second = imported_partly(kb, export, collection)["results"]
    assert (first["path"], first["outcome"], words in first["reason"]) == ("memory 1", "failed", True)
    assert second["outcome"] == "added"


def test_a_memory_that_is_no_text_does_not_keep_the_others_out(
    kb: Kb, tmp_path: Path, collection: str
) -> None:
    """Invalid UTF-8, a lone surrogate, a number out of range."""
    export = tmp_path / "export.json"
    bad = (
        b'{"content": "\xff"}',
        b'{"content": "\\ud800"}',
        b'{"content": "x", "created_at": 1%s}' % (b"0" * 999),
    )
    export.write_bytes(b'{"memories": [' + b",".join((*bad, b'{"content": "Chalk"}')) + b"]}")
    results = imported_partly(kb, export, collection)["results"]
    assert [each["outcome"] for each in results] == ["failed"] * 3 + ["added"]


@pytest.mark.process
def test_members_of_a_memory_that_are_out_of_bounds_are_left_out_and_named(
    kb: Kb, tmp_path: Path, collection: str
) -> None:
    export = tmp_path / "export.json"
    memory = {"content": "Gneiss is banded", "created_at": 1e300, "metadata": {"x": "y" * 70_000}}
    export.write_text(json.dumps({"memories": [memory | {"content_hash": "../../../etc/passwd"}]}))
    (result,) = imported(kb, export, collection)["results"]
    assert (result["outcome"], "its own metadata are left out" in result["reason"]) == ("added", True)
    (note,) = held(kb, collection).values()
    assert note["metadata"] == {"imported_from": "mcp-memory-service", "content_hash": "../../../etc/passwd"}


@pytest.mark.parametrize(
    "content", [b"{}", b"", b"no json", b"[" * 100_000, b'{"memories": {}}', b'["memories"]']
)
def test_a_file_that_is_no_export_is_refused(kb: Kb, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "export.json").write_bytes(content)
    status, _, error = kb("import", str(tmp_path / "export.json"))
    assert (status, error.count("\n"), "kb import: " in error) == (Exit.FAILED, 1, True)


def test_an_export_beyond_all_bounds_is_not_read(kb: Kb, tmp_path: Path) -> None:
    export = tmp_path / "export.json"
    with export.open("wb") as file:
        file.truncate(LARGEST + 1)
    status, _, error = kb("import", str(export))
    assert (status, "in parts" in error) == (Exit.FAILED, True)


def test_importing_an_export_refuses_options_of_other_imports(kb: Kb, tmp_path: Path) -> None:
    write(tmp_path / "out/kb-export.json", "{}")
    for arguments in (["--dry-run"], ["--collection", "documents"], ["--tags", "a"]):
        assert kb("import", str(tmp_path / "out"), *arguments)[0] == Exit.USAGE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\na: b\n---\nrest", ("a: b", "rest")),
        ("---\r\na: b\r\n...\r\nrest", ("a: b", "rest")),
        ("---\n---\nrest", ("", "rest")),
        ("---\n# of a template\n\na: b\n---\nrest", ("# of a template\n\na: b", "rest")),
        ("---\nA chapter.\nNote: text\n---\nrest", ("", "---\nA chapter.\nNote: text\n---\nrest")),
        ("---\n- a: b\n---\nrest", ("", "---\n- a: b\n---\nrest")),
        ("---\na: b\n", ("", "---\na: b\n")),
        ("text\n---\na: b\n---\n", ("", "text\n---\na: b\n---\n")),
        ("----\na: b\n---\n", ("", "----\na: b\n---\n")),
    ],
)
def test_front_matter_stands_between_dashes_at_the_beginning(text: str, expected: tuple[str, str]) -> None:
    assert front_matter.split(text) == expected


@pytest.mark.parametrize(
    "line",
    [
        "- a [[b]]" + " " * 300_000 + "x",
        "`" * 300_001,
        "#" * 300_000,
        "#a" * 200_000,
        "- [" * 100_000,
        "[[" * 200_000,
    ],
)
def test_a_line_without_end_is_read_once(tmp_path: Path, line: str) -> None:
    """Quadratic time would be minutes here and exceed the suite's time-out."""
    path = tmp_path / "long.md"
    path.write_text(f"---\ntitle: Long\n---\n{line}\n")
    for dialect in get_args(markdown.Dialect):
        details = markdown.details_of(path, "long.md", dialect, 1)
        assert (details.title, len(details.tags) < 64) == ("Long", True)


def test_relations_are_list_items_of_a_type_and_a_target() -> None:
    text = (
        "- part_of [[Whole]] (since May)\n* 'a kind of' [[Thing]]\n- [fact] uses [[X]]\n- prose with [[Y]]\n"
        "- part_of [[Whole]]\n- type [[Z]] and more\n```\n- in [[Code]]\n```\n"
        "part_of [[Paragraph]]\n- `in` [[Q]]\n"
    )
    assert [(each["type"], each["to"]) for each in markdown.relations(text)] == [
        ("part_of", "Whole"),
        ("a kind of", "Thing"),
    ]
