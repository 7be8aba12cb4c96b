"""Tests have no literal time limits: `support/patience.py` has them all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
EXEMPT = (
    TESTS / "support/patience.py",
    TESTS / "support/eventually.py",  # compares the clock with a limit given to it
    TESTS / "integration/foreign_engine",  # an engine in an image of its own
    TESTS / "integration/inside",  # runs in an image without this folder
    Path(__file__).resolve(),
)

_LIMIT = re.compile(r"timeout|^(header|wall|wait|read_timeout)_seconds$", re.IGNORECASE)
"""Names of arguments that are time limits."""
_CONSTANT = re.compile(r"(^|_)(SECONDS|TIMEOUT|SILENCE|PATIENCE|BOUND|WAIT|LINGER)$")
"""Names of constants that are time limits."""
_NO_LIMIT = re.compile(r"(PAUSE|BUDGET)_SECONDS$")
"""Names of pauses between two polls, and of processor time."""
_CALLS = {"timeout": 0, "wait_for": 1, "join": 0, "wait": 0, "settimeout": 0, "result": 0}
"""Functions that take a time limit, with its position."""
_HTTPX = {"Client", "AsyncClient", "get", "post", "put", "delete", "patch", "request", "stream"}
"""Functions of httpx; without `timeout` their limit is 5 seconds."""
_CLOCKS = {"monotonic", "perf_counter", "time"}
_CANDIDATE = re.compile(
    r"(timeout|seconds|SECONDS|TIMEOUT|SILENCE|PATIENCE|BOUND|WAIT|LINGER)\w*(:[^=\n]*)?\s*=[\s(-]*[.\d]"
    rf"|\bhttpx2?\.|\bwait_for\(|\b({'|'.join((*_CALLS, 'sleep'))})\([\s(-]*[.\d]"
    rf"|\b({'|'.join(_CLOCKS)})\(\)",
    re.IGNORECASE,
)
"""Blocks without it have no limit, and are not parsed."""
_BETWEEN = "\n\n\n"
"""The two empty lines around each function and class of a module."""


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_number(node: ast.AST) -> bool:
    """True for a number other than 0, also a computed one; False if a name is involved."""
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float) and node.value != 0
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.UnaryOp) and _is_number(node.operand)


def _is_limit(constant: str) -> bool:
    return bool(_CONSTANT.search(constant)) and not _NO_LIMIT.search(constant)


def _reads_clock(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Call)
        and _name(part) in _CLOCKS
        and (isinstance(part.func, ast.Name) or _owner(part.func) == "time")
        for part in ast.walk(node)
    )


def _is_httpx(function: ast.expr) -> bool:
    return _owner(function) in ("httpx", "httpx2") and getattr(function, "attr", "") in _HTTPX


def _owner(function: ast.expr) -> str:
    """The name before the dot of an attribute, or an empty string."""
    return str(getattr(getattr(function, "value", None), "id", ""))


def _breaches(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    match node:
        case ast.Call():
            name = _name(node)
            named = {keyword.arg for keyword in node.keywords}
            called = (node.func, *node.args)  # also of a function that another one calls, such as to_thread
            if any(_is_httpx(each) for each in called) and not named & {"timeout", None}:
                yield node
            for keyword in node.keywords:
                argument = keyword.arg or ""
                is_limit = _LIMIT.search(argument) or (
                    argument == "seconds" and name.startswith("eventually")
                )
                if is_limit and _is_number(keyword.value):
                    yield keyword.value
            position = 0 if name == "sleep" and _sleeps(node.func) else _CALLS.get(name)
            if name == "result" and isinstance(node.func, ast.Name):
                return  # a function of a test, not the method of a future
            if position is not None and len(node.args) > position and _is_number(node.args[position]):
                yield node
        case ast.Assign(targets=[ast.Name(id=name)]) if _is_limit(name) and _is_number(node.value):
            yield node
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _CONSTANT.search(
            name
        ) and _is_number(value):
            yield node
        case ast.arguments():
            parameters = [*node.posonlyargs, *node.args][::-1]
            for parameter, default in (
                *zip(parameters, node.defaults[::-1], strict=False),
                *zip(node.kwonlyargs, node.kw_defaults, strict=True),
            ):
                if default is not None and _LIMIT.search(parameter.arg) and _is_number(default):
                    yield default
        case ast.Compare() if any(_reads_clock(side) for side in (node.left, *node.comparators)):
            yield node


def _sleeps(function: ast.expr) -> bool:
    """True for the wall clock's sleep, False for the method of the project's clocks."""
    return isinstance(function, ast.Name) or _owner(function) in ("asyncio", "time")


def limits(source: str) -> list[int]:
    """Return the lines of `source` with a literal time limit, or with a comparison of a clock."""
    found, line = set[int](), 0
    for block in source.split(_BETWEEN):
        tree = ast.parse(block if _CANDIDATE.search(block) else "")
        found |= {line + part.lineno for node in ast.walk(tree) for part in _breaches(node)}
        line += block.count("\n") + len(_BETWEEN)
    return sorted(found)


@pytest.mark.parametrize(
    "source",
    [
        "httpx.get(url, timeout=60)",
        "asyncio.to_thread(httpx.get, url)",
        "httpx2.AsyncClient(verify=tls)",
        "httpx.Client(base_url=url)",
        "subprocess.run(command, timeout=2 * 30)",
        "process.communicate(timeout=60.0)",
        "Question(read_timeout=0.2)",
        "serve(header_seconds=0.01)",
        "call('kb_addnote', wait_seconds=5)",
        "Limits(wall_seconds=0.5)",
        "Client(url, read_timeout_seconds=60)",
        "eventually(look, seconds=30, what='it')",
        "await eventually_async(look, seconds=30)",
        "await asyncio.sleep(0.05)",
        "time.sleep(2)",
        "sleep(0.1)",
        "await asyncio.wait_for(event.wait(), 5)",
        "await asyncio.wait({task}, timeout=0.05)",
        "thread.join(5)",
        "process.wait(30)",
        "future.result(20)",
        "connection.settimeout(3)",
        "@pytest.mark.timeout(300)\ndef test_it(): ...",
        "async def test_it():\n    async with asyncio.timeout(10): ...",
        "SECONDS = 20.0",
        "_READY_SECONDS: float = 60",
        "def stop(self, timeout=20): ...",
        "def stop(self, *, read_timeout: float = 0.2): ...",
        "assert time.monotonic() - began < 30",
        "assert perf_counter() < end",
    ],
)
def test_a_number_that_is_a_limit_is_found(source: str) -> None:
    assert len(limits(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "httpx.get(url, timeout=ANSWER_SECONDS)",
        "await asyncio.sleep(0)",
        "await clock.sleep(3_600)",
        "' '.join(words)",
        "serve(drain_seconds=4 * ANSWER_SECONDS)",
        "timedelta(seconds=1)",
        "base.clock.move(seconds=9)",
        "_PAUSE_SECONDS = 0.02",
        "now = int(time.time())",
        "assert process_time() - began < 4 * reference",
    ],
)
def test_numbers_that_are_no_time_limits_are_allowed(source: str) -> None:
    assert limits(source) == []


def test_no_number_in_a_test_is_a_time_limit() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if not any(path.is_relative_to(exempt) for exempt in EXEMPT) and "node_modules" not in path.parts
        for line in limits(path.read_text("utf-8"))
    ]
    assert found == [], "take the limit from tests/support/patience.py"
