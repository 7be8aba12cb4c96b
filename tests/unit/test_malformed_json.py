"""JSON that is not UTF-8 is handled as other malformed JSON: msgspec raises UnicodeDecodeError for it."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("contracts", "server", "engine", "cli", "simulator", "load")
COVERING = ("Unicode", "ValueError", "Exception")
"""Beginnings of the names of exceptions that stand for text that is not UTF-8."""


def handlers() -> list[tuple[str, list[str]]]:
    """The place, and the names of the caught exceptions, of each handler of msgspec's errors of decoding."""
    found = []
    for path in sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
                names = [ast.unparse(each) for each in caught]
                if "msgspec.DecodeError" in names:
                    found.append((f"{path.relative_to(ROOT)}:{node.lineno}", names))
    return found


def test_every_handler_of_malformed_json_takes_text_that_is_not_utf_8() -> None:
    with pytest.raises(UnicodeDecodeError):
        msgspec.json.decode(b'["\xff"]', type=list[str])
    found = handlers()
    assert len(found) > 10
    assert not [place for place, names in found if not any(name.startswith(COVERING) for name in names)]
