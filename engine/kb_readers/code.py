"""Source code, split at its definitions: each function, method and class under its own heading.

Definitions are found by a tree-sitter grammar, which also parses files with errors. The text is the complete
file, in its order, in fences; comments and decorators directly above a definition belong to it. So a passage
is found by the names of its enclosing definitions, as in "Store > open".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module

from tree_sitter import Language, Node, Parser

from kb_contracts.api.formats import FORMATS
from kb_readers.grammars import GRAMMARS
from kb_readers.markdown import fenced, one_line
from kb_readers.model import Context, Extraction, TextBudget
from kb_readers.text import decode_marked

TOP_LEVEL = "Top level"  # the heading of code after a definition and outside of all definitions

_DEEPEST = 6  # the deepest level of headings
_LONGEST_NAME = 120

_DEFINITION = re.compile(
    r"(?:\w+_)?(?P<kind>function|method|constructor|init|class|struct|union|enum|interface|trait|impl|mod|"
    r"module|namespace|object|protocol|record|type|type_alias)_(?:definition|declaration|item|specifier)"
    r"|class|module|internal_module|(?P<ruby>method|singleton_method)"
)
_LEAVES = frozenset(["function", "method", "constructor", "init", "type", "type_alias"])
"""Definitions whose inner definitions are ignored."""
_FUNCTIONS = frozenset(["arrow_function", "function_expression", "generator_function"])
_WRAPPERS = frozenset(
    """decorated_definition export_statement template_declaration lexical_declaration
    variable_declaration""".split()  # noqa: SIM905 - read as words
)
_WORD = re.compile(r"(?!\bend\b)\b\w")


@dataclass(slots=True)
class Definition:
    """A part of a file: its name, its start and end in bytes, and its inner definitions."""

    name: str
    start: int
    end: int
    inner: list[Definition] = field(default_factory=list)


def read_code(data: bytes, context: Context) -> Extraction:
    """Return the whole file as one page without a number. Raises ExtractionFailed "undecodable_text"."""
    text = decode_marked(data).replace("\r\n", "\n")
    source = text.encode()
    module, function = GRAMMARS[context.format]
    parser = Parser(Language(getattr(import_module(module), function)()))
    found = _definitions(parser.parse(source).root_node, source)
    budget = TextBudget()
    parts: list[str] = []
    for path, code in _with_words(_pieces(Definition("", 0, len(source), found), []), source):
        part = f"{_heading(path, is_first=not parts)}{fenced(code, context.format)}"
        budget.spend(part)
        parts.append(part)
    return Extraction.of_text(FORMATS[context.format], "\n\n".join(parts), None)


def _pieces(whole: Definition, path: list[str]) -> Iterator[tuple[list[str], int, int]]:
    """Yield each byte once, in order, with the names of the enclosing definitions."""
    place = whole.start
    for inner in whole.inner:
        yield path, place, inner.start
        yield from _pieces(inner, [*path, inner.name])
        place = inner.end
    yield path, place, whole.end


def _with_words(
    pieces: Iterable[tuple[list[str], int, int]], source: bytes
) -> Iterator[tuple[list[str], str]]:
    """Yield the pieces with words, as text; closing brackets are appended to the piece before."""
    waiting: tuple[list[str], str] | None = None
    for path, start, end in pieces:
        code = source[start:end].decode()
        if waiting is not None and not _WORD.search(code):
            waiting = waiting[0], waiting[1] + code
        elif code.strip():
            if waiting is not None:
                yield waiting[0], waiting[1].strip("\n")
            waiting = path, code
    if waiting is not None:
        yield waiting[0], waiting[1].strip("\n")


def _heading(path: list[str], *, is_first: bool) -> str:
    if not path:
        return "" if is_first else f"# {TOP_LEVEL}\n\n"
    return f"{'#' * len(path)} {path[-1]}\n\n"


def _definitions(root: Node, source: bytes) -> list[Definition]:
    """Return the outermost definitions of a tree, in order. Trees are deep, so this is not recursive."""
    top = Definition("", 0, len(source))
    waiting = [(child, top, 1) for child in reversed(root.named_children)]
    while waiting:
        node, outer, level = waiting.pop()
        below, goes_on = outer, True
        if (kind := _kind(node)) is not None:
            start, end = _extent(node, source)
            last = outer.inner[-1].end if outer.inner else outer.start
            if start >= last and end <= outer.end:
                below = Definition(_name(node), start, end)
                outer.inner.append(below)
                level += 1
            goes_on = kind not in _LEAVES and level <= _DEEPEST
        if goes_on:
            waiting += [(child, below, level) for child in reversed(node.named_children)]
    return top.inner


def _kind(node: Node) -> str | None:
    """Return the kind of definition of a node, or None."""
    if node.type == "variable_declarator":
        value = node.child_by_field_name("value")
        return "function" if value is not None and value.type in _FUNCTIONS else None
    found = _DEFINITION.fullmatch(node.type)
    if found is None:
        return None
    if node.type.endswith("_specifier") and node.child_by_field_name("body") is None:
        return None  # a use, such as `struct stone`
    return "method" if found["ruby"] else found["kind"] or node.type


def _extent(node: Node, source: bytes) -> tuple[int, int]:
    """Return the start and end, including comments directly above and the indent of the first line."""
    outermost = node
    while (parent := outermost.parent) is not None and parent.type in _WRAPPERS:
        outermost = parent
    first = outermost
    while (before := first.prev_named_sibling) is not None and (
        ("comment" in before.type or "attribute" in before.type)
        and before.end_point.row >= first.start_point.row - 1
        and not _line_before(before.start_byte, source).strip()
    ):
        first = before
    indent = _line_before(first.start_byte, source)
    start = first.start_byte - (len(indent) if not indent.strip() else 0)
    end = outermost.end_byte
    if source[end : end + 1] == b";":
        end += 1
    return start, end


def _line_before(place: int, source: bytes) -> bytes:
    return source[source.rfind(b"\n", 0, place) + 1 : place]


def _name(node: Node) -> str:
    """Return the name of a definition, or its beginning."""
    named: Node | None = node
    for step in ("name", "declarator", "type"):
        while named is not None and (inner := named.child_by_field_name(step)) is not None:
            named = inner
    if named is None or named == node:
        inside = (child.child_by_field_name("name") for child in node.named_children)
        named = next(filter(None, inside), None)
    text = (named or node).text or b""
    return one_line(text.decode("utf-8", "replace").partition("{")[0])[:_LONGEST_NAME] or node.type
