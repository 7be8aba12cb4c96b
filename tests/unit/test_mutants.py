"""Each test of the contract's suite has a mutant that it must notice, or a reason."""

from __future__ import annotations

import ast
from pathlib import Path

import kb_verify.suite
from tests.mutation.mutants import MUTANTS
from tests.mutation.whole_suite import UNNAMED

SUITE = {
    f"{path.stem}::{node.name}"
    for path in Path(kb_verify.suite.__path__[0]).glob("test_*.py")
    for node in ast.walk(ast.parse(path.read_text("utf-8")))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
}
NAMED = {each.test.partition("[")[0] for each in MUTANTS}


def test_each_test_of_the_suite_has_a_mutant_or_a_reason() -> None:
    assert SUITE - NAMED - UNNAMED.keys() == set()


def test_each_mutant_and_each_reason_is_for_a_test_of_the_suite() -> None:
    assert NAMED <= SUITE
    assert UNNAMED.keys() <= SUITE - NAMED
    assert all(UNNAMED.values())


def test_no_two_mutants_share_a_name() -> None:
    names = [each.name for each in MUTANTS]
    assert len(set(names)) == len(names)
