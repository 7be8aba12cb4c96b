"""A collection synchronized with a folder, against a real engine, and the plan of changes alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest

from kb_cli.output import Exit
from kb_cli.sync.folder import Folder
from kb_cli.sync.planning import Leaving, plan
from kb_cli.sync.source import Listing
from kb_contracts.api import models as m
from tests.unit.cli.conftest import Kb

ON_SHELF = ("--collection", "shelf")


@pytest.fixture
def folder(tmp_path: Path, kb: Kb) -> Path:
    """A folder of three synchronized files. Documents of other tests are removed first."""
    for document in kb.json("get", *ON_SHELF)["documents"]:
        kb("rm", str(document["id"]), "--yes")
    root = tmp_path / "folder"
    write(root / "a.md", "granite quarry")
    write(root / "b.md", "basalt columns")
    write(root / "below" / "c.txt", "slate roofs")
    assert kb("sync", str(root), *ON_SHELF)[0] == Exit.OK
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def synced(kb: Kb, folder: Path, *arguments: str) -> dict[str, list[str]]:
    """Return the file names by outcome."""
    outcomes: dict[str, list[str]] = {}
    for result in kb.json("sync", str(folder), *ON_SHELF, *arguments):
        outcomes.setdefault(result["outcome"], []).append(Path(result["path"]).name)
    return outcomes


def held(kb: Kb, folder: Path) -> dict[str, int]:
    """Return the ids of the collection's documents by relative file path."""
    documents = kb.json("get", *ON_SHELF)["documents"]
    return {os.path.relpath(path, folder): one["id"] for one in documents for path in one["source_paths"]}


def found(kb: Kb, words: str) -> set[str]:
    """Return the texts that a search finds in any mode."""
    results: list[Any] = []
    for mode in ("fts", "vector", "hybrid"):
        results += kb.json("search", words, "--mode", mode, *ON_SHELF)["results"]
    return {result["chunk"]["text"] for result in results}


def test_unchanged_files_are_not_sent_again(kb: Kb, folder: Path) -> None:
    (folder / "a.md").touch()
    assert synced(kb, folder) == {}
    assert set(held(kb, folder)) == {"a.md", "b.md", "below/c.txt"}


def test_files_are_added_replaced_and_removed(kb: Kb, folder: Path) -> None:
    """The old text is then found by no mode."""
    before = held(kb, folder)
    write(folder / "a.md", "marble quarry")
    (folder / "b.md").unlink()
    write(folder / "d.md", "chalk cliffs")
    assert synced(kb, folder) == {"added": ["d.md"], "replaced": ["a.md"], "removed": ["b.md"]}
    after = held(kb, folder)
    assert set(after) == {"a.md", "below/c.txt", "d.md"}
    assert after["a.md"] == before["a.md"]
    assert not {"granite quarry", "basalt columns"} & found(kb, "granite quarry basalt columns")
    assert synced(kb, folder) == {}


def test_a_file_that_was_moved_keeps_its_document(kb: Kb, folder: Path) -> None:
    before = held(kb, folder)
    (folder / "b.md").rename(folder / "below" / "e.md")
    assert synced(kb, folder) == {"already there": ["e.md"]}
    assert held(kb, folder) == {
        "a.md": before["a.md"],
        "below/c.txt": before["below/c.txt"],
        "below/e.md": before["b.md"],
    }


def test_two_files_that_change_places_are_found_by_their_new_names(kb: Kb, folder: Path) -> None:
    (folder / "a.md").rename(folder / "x.md")
    (folder / "b.md").rename(folder / "a.md")
    (folder / "x.md").rename(folder / "b.md")
    synced(kb, folder)
    assert synced(kb, folder) == {}
    texts = {
        name: kb.json("get", str(document))["chunks"][0]["text"]
        for name, document in held(kb, folder).items()
    }
    assert texts == {"a.md": "basalt columns", "b.md": "granite quarry", "below/c.txt": "slate roofs"}


def test_a_copy_shares_its_document_until_it_is_changed_or_removed(kb: Kb, folder: Path) -> None:
    write(folder / "copy.md", "granite quarry")
    assert synced(kb, folder) == {"already there": ["copy.md"]}
    shared = held(kb, folder)
    assert shared["copy.md"] == shared["a.md"]
    (folder / "a.md").unlink()
    assert synced(kb, folder) == {"removed": ["a.md"]}
    assert held(kb, folder)["copy.md"] == shared["copy.md"]


def test_a_dry_run_of_sync_lists_changes_and_makes_none(kb: Kb, folder: Path) -> None:
    before = held(kb, folder)
    (folder / "a.md").rename(folder / "z.md")
    (folder / "b.md").unlink()
    write(folder / "d.md", "chalk cliffs")
    write(folder / "e.blend", "")
    status, out, _ = kb("sync", str(folder), *ON_SHELF, "--dry-run")
    lines = out.splitlines()
    assert status == Exit.OK
    assert [line.split("\t")[0] for line in lines[:-1]] == ["add", "move", "remove"]
    assert lines[-1] == "1 to add, 1 to move, 1 to remove, 1 unchanged, 1 of unknown formats"
    planned = kb.json("sync", str(folder), *ON_SHELF, "--dry-run")
    assert [Path(each["source"]).name for each in planned["removed"]] == ["b.md"]
    assert held(kb, folder) == before


def test_a_file_that_leads_out_of_the_folder_is_left_out_and_leaves_the_base(kb: Kb, folder: Path) -> None:
    """It is reported at each run, and is no failure; a link within the folder counts as a file."""
    secret = folder.parent / "secret.md"
    write(secret, "obsidian key")
    write(folder / "out.md", "obsidian key")
    (folder / "in.md").symlink_to(folder / "a.md")
    assert set(synced(kb, folder)) == {"added", "already there"}
    (folder / "out.md").unlink()
    (folder / "out.md").symlink_to(secret)
    out = kb("sync", str(folder), *ON_SHELF, "--dry-run")[1]
    assert f"leave out\t{folder / 'out.md'}\tit leads out of the folder by a link\n" in out
    assert synced(kb, folder) == {"removed": ["out.md"], "skipped": ["out.md"]}
    assert set(held(kb, folder)) == {"a.md", "b.md", "below/c.txt", "in.md"}
    assert "obsidian key" not in found(kb, "obsidian key")


def test_a_file_of_credentials_is_not_taken_in_and_its_document_stays(kb: Kb, folder: Path) -> None:
    file = folder / "credentials.json"
    write(file, "obsidian")
    kb("add", str(file), "--collection", "shelf")
    assert synced(kb, folder)["skipped"] == ["credentials.json"]
    assert "obsidian" in found(kb, "obsidian")


def test_ignored_files_and_unknown_formats_are_not_added(kb: Kb, folder: Path) -> None:
    write(folder / ".gitignore", "*.log\nbuild/\nbelow/*.txt\n")
    write(folder / ".kbignore", "drafts/\n!keep.log\n")
    write(folder / "below" / ".gitignore", "!c.txt\n")
    for name in ("x.log.md", "build/y.md", "drafts/z.md", ".hidden.md", "below/d.txt", "program.exe"):
        write(folder / name, f"text of {name}")
    assert synced(kb, folder) == {"added": ["x.log.md"]}
    write(folder / ".kbignore", "*.md\n")
    assert sorted(synced(kb, folder)["removed"]) == ["a.md", "b.md", "x.log.md"]


def test_an_empty_folder_empties_nothing_unless_that_is_said(kb: Kb, folder: Path) -> None:
    """The folder may be an unmounted file system."""
    for path in ("a.md", "b.md", "below/c.txt"):
        (folder / path).unlink()
    status, _, error = kb("sync", str(folder), *ON_SHELF)
    assert status == Exit.USAGE
    assert "--yes" in error
    assert len(held(kb, folder)) == 3
    assert len(synced(kb, folder, "--yes")["removed"]) == 3
    assert held(kb, folder) == {}


def test_sync_changes_only_its_folder_and_collection(kb: Kb, folder: Path) -> None:
    beside = folder.with_name("folder2")
    write(beside / "a.md", "granite quarry")
    kb.json("sync", str(beside), *ON_SHELF)
    kb.json("sync", str(folder), "--collection", "elsewhere")
    (folder / "a.md").unlink()
    assert synced(kb, folder) == {"removed": ["a.md"]}
    assert "../folder2/a.md" in held(kb, folder)
    assert len(kb.json("get", "--collection", "elsewhere")["documents"]) == 3


def test_sync_recognises_files_added_by_kb_add(kb: Kb, folder: Path) -> None:
    """`kb add` names files as `kb sync` does."""
    write(folder / "d.md", "chalk cliffs")
    kb.json("add", str(folder), *ON_SHELF)
    assert synced(kb, folder) == {}


def test_a_folder_that_is_none_is_a_mistake(kb: Kb, tmp_path: Path) -> None:
    write(tmp_path / "a.md", "granite")
    for path in ("missing", "a.md"):
        status, _, error = kb("sync", path)
        assert (status, error.count("\n")) == (Exit.USAGE, 1)
        assert "no such folder" in error


@pytest.mark.parametrize("method", ["iterdir", "open"])
def test_unreadable_files_are_not_treated_as_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The refusal is simulated, because root can read everything."""
    write(tmp_path / "below" / "a.md", "granite")
    whole = getattr(Path, method)

    def refused(path: Path, *arguments: Any, **options: Any) -> Any:
        if "below" in path.parts:
            raise PermissionError(13, "Permission denied")
        return whole(path, *arguments, **options)

    monkeypatch.setattr(Path, method, refused)
    listing = Folder(tmp_path).listed()
    assert list(listing.unreadable.values()) == ["Permission denied"]
    assert not listing.files
    assert listing.may_hold(str(tmp_path / "below" / "a.md"))
    assert not listing.may_hold(str(tmp_path / "below2" / "a.md"))


def test_names_that_no_source_path_can_hold_are_said_to_be_unreadable(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(5):
        deep = deep / ("x" * 200)
        deep.mkdir()
    write(deep / "a.md", "granite")
    write(tmp_path / os.fsdecode(b"b\xff.md"), "basalt")
    listing = Folder(tmp_path).listed()
    assert sorted(listing.unreadable.values()) == [
        "its path has more than 1000 characters",
        "its path is not UTF-8",
    ]


def test_a_file_that_stands_as_it_was_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.md", "granite")
    write(tmp_path / "b.md", "basalt")
    folder = Folder(tmp_path)
    first = folder.listed()
    write(tmp_path / "b.md", "slate")
    read: list[str] = []
    whole = Path.open

    def noted(path: Path, *rest: Any) -> IO[Any]:
        read.append(path.name)
        return whole(path, *rest)

    monkeypatch.setattr(Path, "open", noted)
    second = folder.listed()
    assert set(read) == {"b.md"}
    source = str(tmp_path / "a.md")
    assert second.digests[source] == first.digests[source]


@pytest.mark.process
def test_of_several_moves_of_the_same_text_each_source_goes_once(kb: Kb, folder: Path) -> None:
    """Only as many sources are moved as there are new paths; further paths are additions."""
    (standing,) = (one for one in kb.json("get", *ON_SHELF)["documents"] if one["filename"] == "a.md")
    sources = ["/f/a", "/f/b", "/g/c"]
    shared = msgspec.convert({**standing, "source_paths": sources, "sha256": "1"}, m.Document)
    listing = Listing(digests={"/f/x": "1", "/f/y": "1", "/f/z": "1"}, is_complete=True)
    planned = plan(listing, [shared], "/f/", lambda *_: True)
    assert planned.moved == [Leaving("/f/a", shared.id, "/f/x"), Leaving("/f/b", shared.id, "/f/y")]
    assert (planned.added, planned.removed, planned.unchanged) == (["/f/z"], [], 0)
