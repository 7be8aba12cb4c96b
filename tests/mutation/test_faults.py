"""Drawing, location and application of faults."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tests.mutation.fault_places import Module, Site, drawn, instrumented, located
from tests.mutation.faults import (
    LIST,
    PART_SIZE,
    PARTS,
    FaultList,
    Probed,
    Row,
    Tree,
    candidates,
    gone,
    new_survivors,
    row_of,
    selected,
)

ROOT = Path(__file__).parents[2]

FILE = "contracts/shelf.py"
SOURCE = '''"""A shelf."""

from __future__ import annotations

ROOM = 3


def fits(books: int, *, tight: bool = False) -> bool:
    """True if there is room."""
    if tight and not books % 2:
        return books < ROOM + 1
    return books <= ROOM
'''
TESTS = """import pytest
from shelf import fits


def test_one_book_fits():
    assert fits(1)


def test_nine_books_do_not_fit():
    assert not fits(9)


@pytest.mark.process
def test_two_books_fit():
    assert fits(2)


@pytest.mark.process
def test_a_process_fits():
    raise AssertionError
"""


def sites(source: str = SOURCE) -> list[Site]:
    return list(Module(FILE, source.encode()).sites())


def site_of(kind: str, original: str) -> Site:
    (found,) = (site for site in sites() if (site.fault.kind, site.fault.original) == (kind, original))
    return found


def test_a_function_and_its_constants_have_each_kind_of_fault() -> None:
    changes = {(each.fault.kind, each.fault.original, each.fault.changed) for each in sites()}
    assert changes == {
        ("constant", "3", "4"),
        ("default", "False", "True"),
        ("negation", "tight and not books % 2", "not (tight and (not books % 2))"),
        ("and/or", "tight and not books % 2", "tight or not books % 2"),
        ("arithmetic", "books % 2", "books * 2"),
        ("constant", "2", "3"),
        ("return", "books < ROOM + 1", "None"),
        ("comparison", "books < ROOM + 1", "books >= ROOM + 1"),
        ("boundary", "books < ROOM + 1", "books <= ROOM + 1"),
        ("arithmetic", "ROOM + 1", "ROOM - 1"),
        ("constant", "1", "2"),
        ("return", "books <= ROOM", "None"),
        ("comparison", "books <= ROOM", "books > ROOM"),
        ("boundary", "books <= ROOM", "books < ROOM"),
    }


def test_a_seed_draws_the_same_faults_and_none_within_another() -> None:
    first, second = (drawn(sites(), 20, random.Random(7)) for _ in range(2))
    assert [site.fault for site in first] == [site.fault for site in second]
    spans = sorted((site.start, site.end) for site in first)
    assert len(spans) > 3
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_a_fault_is_located_after_unrelated_lines_have_changed() -> None:
    fault = site_of("boundary", "books <= ROOM").fault
    moved = SOURCE.replace("ROOM = 3", "ROOM = 3\n\n\ndef door() -> bool:\n    return 1 <= ROOM")
    moved = moved.replace("return books <= ROOM", "return books <= ROOM  # the last one fits, too")
    (site,) = located([fault], sites(moved))
    assert site is not None
    assert moved.encode()[site.start : site.end] == b"books <= ROOM"
    assert site.fault.line == fault.line + 4


@pytest.mark.parametrize("folders", PARTS, ids=" ".join)
def test_each_seeded_fault_is_in_the_source(folders: tuple[str, ...]) -> None:
    faults = [
        fault
        for fault in msgspec.json.decode(LIST.read_bytes(), type=FaultList).faults
        if fault.file.startswith(tuple(f"{folder}/" for folder in folders))
    ]
    files = {fault.file for fault in faults if (ROOT / fault.file).is_file()}
    found = (site for file in files for site in Module(file, (ROOT / file).read_bytes()).sites())
    message = gone(faults, located(faults, found))
    assert not message, message
    assert len(faults) == PART_SIZE


def test_faults_are_drawn_until_a_part_is_full() -> None:
    listed = [site_of("boundary", "books <= ROOM")]
    (found,) = candidates([[Module(FILE, SOURCE.encode())]], listed, 7)
    assert {site.fault.original for site in found} > {"3", "False"}
    assert "books <= ROOM" not in {site.fault.original for site in found}
    full = [Site(listed[0].fault, number, number, None) for number in range(PART_SIZE)]
    assert candidates([[Module(FILE, SOURCE.encode())]], full, 7) == [[]]


def test_a_fault_is_gone_with_its_text_or_its_function() -> None:
    fault = site_of("boundary", "books <= ROOM").fault
    assert located([fault], sites(SOURCE.replace("books <= ROOM", "books <= ROOM + 0"))) == [None]
    assert located([fault], sites(SOURCE.replace("def fits", "def suits"))) == [None]
    for place in (str(fault), "--draw"):
        assert place in gone([fault], [None])


def test_equal_texts_in_a_function_are_told_apart() -> None:
    source = "import os\n\n\ndef one(a: int) -> bool:\n    return (a > 1) is (a > 1)\n"
    nths = [each.fault.nth for each in sites(source) if each.fault.kind == "boundary"]
    assert nths == [0, 1]
    found = sites(source)
    assert located([each.fault for each in found], found) == found


def test_the_nearest_file_comes_first_and_the_promises_last() -> None:
    promises = "tests/contract/test_promises.py::test_all"
    far, near, dear = (
        f"tests/unit/{each}.py::test_one" for each in ("web/test_a", "store/test_jobs", "test_z")
    )
    probed = Probed(
        costs={far: 1.0, near: 2.0, dear: 50.0, promises: 90.0, "tests/test_other.py::test_one": 0.1}
    )
    chosen, left_out = selected("engine/kb_engine/store/jobs.py", {far, near, dear}, probed, 20.0)
    assert (chosen, left_out) == ([near, far, promises], 1)


def test_a_fault_that_a_fixture_reaches_has_the_whole_file() -> None:
    probed = Probed(
        costs={
            "tests/test_a.py::test_one": 1.0,
            "tests/test_a.py::test_two": 1.0,
            "tests/test_a.py::test_red": 1.0,
        },
        failed={"tests/test_a.py::test_red[row]": "AssertionError"},
    )
    chosen, _ = selected("engine/kb_engine/chunk.py", {"tests/test_a.py"}, probed, 20.0)
    assert chosen == ["tests/test_a.py::test_one", "tests/test_a.py::test_two"]


def test_a_new_survivor_was_killed_before() -> None:
    one, two, three = (each.fault for each in sites()[:3])
    before = [Row(one, "killed"), Row(two, "survived"), Row(three, "killed")]
    after = [Row(one, "survived"), Row(two, "survived"), Row(three, "killed")]
    assert [row.fault for row in new_survivors(before, after)] == [one]


@pytest.mark.process
def test_a_fault_is_killed_by_the_test_that_notices_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for file, text in ((FILE, SOURCE), ("test_shelf.py", TESTS), (".gitignore", ".venv\n")):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)
    (root / ".venv").symlink_to(sys.prefix)
    for arguments in (("init", "--quiet"), ("add", ".")):
        subprocess.run(["git", "-C", root, *arguments], check=True)
    chosen = [
        site_of("comparison", "books <= ROOM"),
        site_of("constant", "3"),
        site_of("return", "books < ROOM + 1"),
    ]
    tree = Tree(root, tmp_path / "tree", added=["test_shelf.py::test_two_books_fit"])
    for file, source in instrumented([Module(FILE, SOURCE.encode())], chosen).items():
        (tree.path / file).write_bytes(source)

    probed, _ = tree.pytest()
    rows = [row_of(tree, number, site.fault, probed, seconds=60.0) for number, site in enumerate(chosen)]

    assert (probed.status, len(probed.costs)) == (0, 3)
    assert [(row.outcome, row.killed_by) for row in rows] == [
        ("killed", "test_shelf.py::test_nine_books_do_not_fit"),
        ("survived", ""),
        ("unreached", ""),
    ]
