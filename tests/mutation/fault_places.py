"""Places in the source where one expression can be changed, drawn from a seed and located by their text."""

from __future__ import annotations

import ast
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

FLIPPED = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
SHIFTED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
}
SKIPPED = {"annotation", "returns", "decorator_list", "bases", "keywords", "type_params", "pattern"}
"""Fields of nodes without faults: types, decorators, patterns."""
IMPORT = "from kb_fault import at as _kb_at\n"
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Fault(msgspec.Struct, frozen=True):
    """A change of one expression; `source` is its line without the comment.

    `nth` tells equal texts on equal lines of a function apart.
    """

    file: str
    function: str
    kind: str
    original: str
    changed: str
    source: str
    nth: int
    line: int

    @property
    def place(self) -> tuple[str, str, str, str, str, int]:
        """The location. The line number is for people only: it moves with unrelated changes."""
        return self.file, self.function, self.kind, self.original, self.source, self.nth

    def __str__(self) -> str:
        change = " ".join(f"{self.original} -> {self.changed}".split())
        return f"{self.file}:{self.line} {self.function or 'module'} [{self.kind}] {change}"


class Site(NamedTuple):
    """A fault in one version of its file, with the byte range that it replaces.

    A default and a module's constant are evaluated at import, so calls of their `readers` count instead: one
    function, or every function that names the constant.
    """

    fault: Fault
    start: int
    end: int
    readers: Function | str | None


class _Change(NamedTuple):
    function: str
    kind: str
    node: ast.expr
    changed: str
    readers: Function | str | None = None


class Module:
    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source, self.tree = file, source, ast.parse(source)
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def sites(self) -> Iterator[Site]:
        """Yield every fault that this file can have."""
        seen: Counter[tuple[str, str, str, str]] = Counter()
        for change in _changes(self.tree, "", inside=False):
            node = change.node
            start = self._starts[node.lineno - 1] + node.col_offset
            end = self._starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            original = self.source[start:end].decode()
            line = self.source[self._starts[node.lineno - 1] : self._starts[node.lineno]].decode()
            row = line.partition("  # ")[0].strip()
            key = (change.function, change.kind, original, row)
            fault = Fault(
                self.file, change.function, change.kind, original, change.changed, row, seen[key], node.lineno
            )
            seen[key] += 1
            yield Site(fault, start, end, change.readers)

    def probes(self, readers: Function | str) -> Iterator[int]:
        """Yield the offsets of the readers' first statements; a body on the line of its `def` is left out."""
        for function in (each for each in ast.walk(self.tree) if isinstance(each, Function)):
            if function is readers or (isinstance(readers, str) and readers in _names(function)):
                documented = ast.get_docstring(function) is not None and len(function.body) > 1
                first = function.body[documented]
                if first.lineno > function.lineno and not getattr(first, "decorator_list", []):
                    yield self._starts[first.lineno - 1] + first.col_offset

    def instrumented(self, edits: Iterable[tuple[int, int, str]]) -> bytes:
        """Return the source with replaced ranges, and with the import of the probe before its own imports."""
        first = next(each for each in self.tree.body if isinstance(each, ast.Import | ast.ImportFrom))
        if isinstance(first, ast.ImportFrom) and first.module == "__future__":
            assert first.end_lineno is not None
            offset = self._starts[first.end_lineno]
        else:
            offset = self._starts[first.lineno - 1]
        source = self.source
        for start, end, text in sorted([*edits, (offset, offset, IMPORT)], reverse=True):
            source = source[:start] + text.encode() + source[end:]
        return source


def _names(function: Function) -> set[str]:
    nodes = list(ast.walk(function))
    names = {each.id for each in nodes if isinstance(each, ast.Name)}
    return names | {each.attr for each in nodes if isinstance(each, ast.Attribute)}


def _changes(node: ast.AST, name: str, *, inside: bool) -> Iterator[_Change]:
    if isinstance(node, Function | ast.ClassDef):
        name = f"{name}.{node.name}".lstrip(".")
        inside = isinstance(node, Function)
    match node:
        case ast.FunctionDef(args=parameters) | ast.AsyncFunctionDef(args=parameters):
            for value in (*parameters.defaults, *filter(None, parameters.kw_defaults)):
                yield from (_Change(name, "default", value, text, node) for text in _other_values(value))
        case ast.Module(body=body):
            for each in body:
                match each:
                    case (
                        ast.Assign(targets=[ast.Name(id=constant)], value=value)
                        | ast.AnnAssign(target=ast.Name(id=constant), value=ast.expr() as value)
                    ):
                        changed = _other_values(value)
                        yield from (_Change("", "constant", value, text, constant) for text in changed)
        case _ if inside:
            yield from (_Change(name, *each) for each in _faults_at(node))
    if isinstance(node, ast.JoinedStr | ast.Lambda | ast.arguments):
        return
    for field, value in ast.iter_fields(node):
        for each in value if isinstance(value, list) else [value]:
            if field not in SKIPPED and isinstance(each, ast.AST):
                yield from _changes(each, name, inside=inside)


def _faults_at(node: ast.AST) -> Iterator[tuple[str, ast.expr, str]]:
    match node:
        case ast.Compare(left, [operator], right):
            for kind, other in (("comparison", FLIPPED), ("boundary", SHIFTED)):
                if type(operator) in other:
                    yield kind, node, ast.unparse(ast.Compare(left, [other[type(operator)]()], right))
        case ast.BoolOp(operator, values):
            other_operator = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and/or", node, ast.unparse(ast.BoolOp(other_operator, values))
        case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC:
            yield "arithmetic", node, ast.unparse(ast.BinOp(left, ARITHMETIC[type(operator)](), right))
        case ast.Constant():
            yield from (("constant", node, text) for text in _other_values(node))
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return", value, "None"
        case ast.Expr(value=(ast.Call() | ast.Await(value=ast.Call())) as value):
            yield "call", value, "None"
    tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else getattr(node, "ifs", [])
    for test in tests:
        denied = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else None
        yield "negation", test, ast.unparse(denied or ast.UnaryOp(ast.Not(), test))


def _other_values(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Constant(value=bool(value)):
            yield repr(not value)
        case ast.Constant(value=int() | float() as number):
            yield repr(number + 1)
        case ast.BinOp(left=ast.Constant(value=int() | float()), right=ast.Constant(value=int() | float())):
            yield f"{ast.unparse(node)} + 1"


def modules(root: Path, folders: Iterable[str]) -> list[Module]:
    files = sorted(file for folder in folders for file in (root / folder).rglob("*.py"))
    return [Module(str(file.relative_to(root)), file.read_bytes()) for file in files]


def drawn(
    sites: Iterable[Site], number: int, chance: random.Random, taken: Collection[Site] = ()
) -> list[Site]:
    """Return sites in random order, with all kinds equally likely; none overlaps another or `taken`."""
    kinds: dict[str, list[Site]] = defaultdict(list)
    for site in sites:
        kinds[site.fault.kind].append(site)
    for each in kinds.values():
        chance.shuffle(each)
    chosen: list[Site] = []
    while len(chosen) < number and kinds:
        kind = chance.choice(sorted(kinds))
        site = kinds[kind].pop()
        if not kinds[kind]:
            del kinds[kind]
        if not any(_overlap(each, site) for each in (*taken, *chosen)):
            chosen.append(site)
    return chosen


def _overlap(one: Site, other: Site) -> bool:
    return one.fault.file == other.fault.file and one.start < other.end and other.start < one.end


def located(faults: Iterable[Fault], sites: Iterable[Site]) -> list[Site | None]:
    """Return the site of each fault in this source, or None if its text is gone."""
    by_place = {site.fault.place: site for site in sites}
    return [by_place.get(fault.place) for fault in faults]


def instrumented(source: Sequence[Module], sites: Sequence[Site | None]) -> dict[str, bytes]:
    """Return the changed files with every fault inserted, each enabled by its number in `sites`."""
    edits: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for number, site in enumerate(sites):
        for module in source if site is not None else ():
            assert site is not None
            if module.file == site.fault.file:
                original = module.source[site.start : site.end].decode()
                text = f"(({site.fault.changed}) if _kb_at({number}) else ({original}))"
                edits[module.file].append((site.start, site.end, text))
            for offset in module.probes(site.readers) if site.readers is not None else ():
                indent = module.source[:offset].rpartition(b"\n")[2].decode()
                edits[module.file].append((offset, offset, f"_kb_at({number})\n{indent}"))
    return {each.file: each.instrumented(edits[each.file]) for each in source if each.file in edits}
