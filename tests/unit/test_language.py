"""Names in the source are plain technical English, without the words of the project's former dialect.

Modules, classes, functions, parameters, variables and attributes are checked; a word is a part between
underscores or capitals. Names of tests are sentences and may have any verb.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stack import ROOT

REFUSED = {
    *("anew", "aside", "asked", "asking", "ear", "ears", "handed", "heard", "hearing", "hears", "news"),
    *("said", "say", "saying", "says", "shown", "tell", "telling", "tells", "told"),
}
ALLOWED: dict[str, str] = {}
"""Names that keep such a word, each with its reason, for instance a library's or a protocol's own name."""

PACKAGES = ("contracts", "server", "engine", "simulator", "cli", "load")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_TEXT = re.compile(r""""{3}(?:\\.|[^\\])*?"{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*""", re.DOTALL)
"""A string or a comment."""
_CANDIDATE = re.compile(
    rf"(?<![a-z])(?i:{'|'.join(REFUSED)})(?![a-z])|(?:{'|'.join(map(str.capitalize, REFUSED))})(?![a-z])"
)
"""A part of a name. Blocks without one are not parsed, which takes most of the time."""


def names(tree: ast.AST) -> Iterator[str]:
    """Yield every name that a module defines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case (
                ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name


def refused(path: Path) -> set[str]:
    """Return the names of a file, with its own, that have a refused word."""
    source = path.read_text("utf-8")
    found = {path.stem}
    if _CANDIDATE.search(_TEXT.sub("", source)):
        for block in source.split("\n\n\n"):  # functions and classes have two empty lines around them
            found.update(names(ast.parse(block if _CANDIDATE.search(block) else "")))
    return {
        name
        for name in found - ALLOWED.keys()
        if not name.startswith("test_") and {part.lower() for part in _WORD.findall(name)} & REFUSED
    }


def test_no_name_speaks_the_old_dialect() -> None:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    found = {path.relative_to(ROOT).as_posix(): names for path in paths if (names := refused(path))}
    assert found == {}, "rename them: docs/glossary.md has the terms"


@pytest.mark.parametrize("part", PACKAGES)
def test_at_most_two_modules_of_a_part_share_a_name(part: str) -> None:
    counts = Counter(path.name for path in (ROOT / part).rglob("*.py") if path.name != "__init__.py")
    assert [name for name, count in counts.items() if count > 2] == []


@pytest.mark.parametrize(
    "source",
    [
        "def told(): ...",
        "class Told: ...",
        "def read(*, asked): ...",
        "shown_rows = 1",
        "self.last_heard = 1",
        "import logging as news",
        "for said in (): ...",
        "match 1:\n    case tells: ...",
    ],
)
def test_each_kind_of_name_is_read(tmp_path: Path, source: str) -> None:
    (tmp_path / "module.py").write_text(source)
    assert len(refused(tmp_path / "module.py")) == 1


def test_a_refused_word_within_a_longer_word_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("essay = linear = untold = threshold = 1")
    assert refused(tmp_path / "module.py") == set()
