"""Docstrings, comments and pages are plain technical English: nouns instead of relative clauses.

The limits are rates in 1,000 words of a part. Well-kept libraries have "what" up to 1.5 times, and the
pronouns up to 6 times.
"""

from __future__ import annotations

import re
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
    r"""(^[ ]*r?)?(?:"{3}((?:\\.|[^\\])*?)"{3}|'{3}(?:\\.|[^\\])*?'{3}"""
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(\#[^\n]*))""",
    re.DOTALL | re.MULTILINE,
)
"""A string with its indentation and its text if it may be a docstring, or a comment; a tenth of the time of
`ast.parse`.
"""
_WITHIN = "(,[{=+%"
"""The last character of code before a string that is part of an expression."""
_DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|pragma|pylint|!|-|=)")


def prose(source: str) -> tuple[list[tuple[int, str]], list[str]]:
    """Return docstrings with their lines, also those of constants and attributes, and comments."""
    docstrings, comments = list[tuple[int, str]](), list[str]()
    last, end = ":", 0
    for found in _STRING_OR_COMMENT.finditer(source):
        last = source[end : found.start()].rstrip()[-1:] or last
        end = found.end()
        indentation, text, comment = found.groups()
        if comment is None:
            if None not in (indentation, text) and last not in _WITHIN:
                docstrings.append((source.count("\n", 0, found.start(2)) + 1, text))
            last = '"'
        elif not _DIRECTIVE.match(comment):
            comments.append(comment.lstrip("# "))
    return docstrings, comments


def files(part: str) -> list[Path]:
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
    docstrings, comments = prose(text)
    return docstrings, _CODE.sub(" ", "\n".join([*(docstring for _, docstring in docstrings), *comments]))


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


def test_docstrings_and_comments_are_distinguished_from_other_strings() -> None:
    source = '"""One."""\nA = f("""no""", "# no")  # two\nB = (\n    """no""",\n)\n"""Three."""\n# noqa\n'
    assert prose(source) == ([(1, "One."), (6, "Three.")], ["two"])
