"""Docstrings, comments and pages are plain technical English: nouns instead of relative clauses.

The limits are rates in 1,000 words of a part. Well-kept libraries have "what" up to 1.5 times, and the
pronouns up to 6 times.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.stack import ROOT

MAX_RELATIVE, MAX_PRONOUNS = 3.0, 6.0
PARTS = (
    *("contracts/kb_contracts", "contracts/kb_http", "contracts/kb_config", "contracts/kb_verify"),
    *("server/mcp_aiohttp", "server/kb_server", "engine/kb_engine", "engine/kb_readers"),
    *("simulator", "cli", "load", "deploy", "examples", "skills", "docs"),
    *("tests/unit", "tests/protocol", "tests/integration", "tests/support", "tests"),
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"),
)
GENERATED = ("docs/settings.md", "docs/licences.md", "examples/documents")
"""Tables of texts that stand in the code, and the documents of the examples."""

RELATIVE = re.compile(
    r"\b(what(ever)?|the (thing|one)s? (that|which)|(any|every|some)thing (that|which)|that which)\b", re.I
)
"""Relative clauses in place of a noun, also in longer forms."""
PRONOUNS = re.compile(
    r"\b((?i:who(ever|m|se)?|whichever|(no|some|any|every)body|those|others|else)|none|None of)\b"
)
"""Not the value `None`."""
OPENING = re.compile(r"(What|Whether|Who|Whose|How|As|Of|So|Where|That|By what|In what)\b")
_CODE = re.compile(r"```.*?```|`[^`]*`", re.S)
_STRING_OR_COMMENT = re.compile(
    r""""{3}(?:\\.|[^\\])*?"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(#[^\n]*)""",
    re.S,
)
"""A string, or a comment as its group; a tenth of the time of `tokenize`."""
_DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|pragma|pylint|!|-|=)")


def docstrings(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, also those of constants and attributes."""
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield statement.lineno, text
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield from docstrings(statement.body)


def comments(source: str) -> Iterator[str]:
    for found in _STRING_OR_COMMENT.finditer(source):
        if (comment := found[1]) and not _DIRECTIVE.match(comment):
            yield comment.lstrip("# ")


def files(part: str) -> list[Path]:
    """Return the Python files and pages of a part."""
    root = ROOT / part
    found = [root] if root.is_file() else [*root.rglob("*.py"), *root.rglob("*.md")]
    return [
        path
        for path in sorted(found)
        if not path.relative_to(ROOT).as_posix().startswith(GENERATED) and "node_modules" not in path.parts
    ]


@cache
def read(path: Path) -> tuple[list[tuple[int, str]], str]:
    """Return the docstrings of a file with their lines, and all its prose without code."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return [], _CODE.sub(" ", text)
    found = list(docstrings(ast.parse(text).body))
    return found, _CODE.sub(" ", "\n".join([*(docstring for _, docstring in found), *comments(text)]))


def rates(text: str) -> tuple[int, float, float]:
    """Return the number of words, and how often relative clauses and pronouns occur in 1,000 words."""
    words = len(re.findall(r"[A-Za-z']+", text))
    per = 1_000 / max(1, words)
    return words, len(RELATIVE.findall(text)) * per, len(PRONOUNS.findall(text)) * per


@pytest.mark.parametrize("part", PARTS)
def test_prose_uses_nouns(part: str) -> None:
    _, relative, pronouns = rates("\n".join(read(path)[1] for path in files(part)))
    assert relative <= MAX_RELATIVE
    assert pronouns <= MAX_PRONOUNS


@pytest.mark.parametrize("part", [part for part in PARTS if not part.endswith(".md")])
def test_docstrings_do_not_begin_with_a_relative_word(part: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0]}"
        for path in files(part)
        for line, text in read(path)[0]
        if OPENING.match(text.strip())
    ]
    assert found == []


def test_the_rates_count_evasions_and_ignore_the_value_none() -> None:
    text = "The thing that is returned, whatever it is, or None. " + "word " * 90
    assert rates(text) == (100, 20.0, 0.0)
    assert rates("Nobody who asks " + "word " * 97)[2] == pytest.approx(20.0)
