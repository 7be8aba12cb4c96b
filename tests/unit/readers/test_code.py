"""Source code: split at its definitions, with their names, and nothing lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api.formats import FORMATS, format_of
from kb_engine.chunk import chunks
from kb_readers.code import TOP_LEVEL, read_code
from kb_readers.grammars import GRAMMARS
from kb_readers.model import DEFAULT_LIMITS, Context
from tests.support.reading import reader_of, refusal

STORE = '''
"""Keeps stones."""
import os

# What the quarry has
# and what it had.
@final
class Store(Base):
    """Keeps."""

    size = 1

    def open(self, path: str) -> None:
        def inner() -> None: ...
        return path

    # Slow.
    @property
    async def weight(self) -> int:
        return 1

    last = 2


if DEBUG:

    def late() -> None: ...


LIMIT = 3
'''


def read(source: str, name: str = "py") -> str:
    (page,) = read_code(source.encode(), Context(name, DEFAULT_LIMITS)).pages
    return page.text


def headings(text: str, name: str = "py") -> list[str]:
    """The headings of the chunks in order, without adjacent repeats."""
    extraction = read_code(text.encode(), Context(name, DEFAULT_LIMITS))
    found = [chunk.heading for chunk in chunks(extraction, capacity=40)]
    return [one or "" for place, one in enumerate(found) if not place or found[place - 1] != one]


def code_in(text: str) -> str:
    lines, fence = [], ""
    for line in text.split("\n"):
        opening = re.match(r"`{3,}", line)
        if not fence and opening:
            fence = opening[0]
        elif line == fence:
            fence = ""
        elif fence:
            lines.append(line)
    return "".join("\n".join(lines).split())


def test_each_definition_is_below_its_name_and_those_around_it() -> None:
    assert headings(STORE) == [
        "", "Store", "Store > open", "Store > weight", "Store", TOP_LEVEL, "late", TOP_LEVEL,
    ]  # fmt: skip
    text = read(STORE)
    assert "# Store\n\n```py\n# What the quarry has\n# and what it had.\n@final\nclass Store(Base):" in text
    assert "## weight\n\n```py\n    # Slow.\n    @property\n    async def weight" in text
    assert code_in(text) == "".join(STORE.split())


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        (
            "js",
            "import a from 'a';\nexport default class Foo { constructor() {} get(x) { return x } }\n"
            "export const f = async (x) => x + 1;\nfunction g() {}\nmodule.exports = { g };",
            ["", "Foo", "Foo > constructor", "Foo > get", "f", "g", TOP_LEVEL],
        ),
        (
            "ts",
            "interface P { a: string }\nexport type T = string | number;\n"
            "export abstract class A { private m(): void {} }\nnamespace N { export function f() {} }",
            ["P", "T", "A", "A > m", "N", "N > f"],
        ),
        ("tsx", "export function App() { return <div>granite</div> }", ["App"]),
        (
            "go",
            'package a\n\nimport "fmt"\n\n// Foo does.\nfunc (s *S) Foo(x int) {}\n\ntype S struct { a int }',
            ["", "Foo", "S"],
        ),
        (
            "rs",
            "use x;\n/// Doc.\n#[derive(Debug)]\npub struct S { a: u8 }\n"
            "impl Tr for S { fn go(&self) {} }\nmod m { pub fn f() {} }",
            ["", "S", "S > go", "m", "m > f"],
        ),
        ("java", "public class A { /** doc */ int f(int x) { return x; } enum E { A } }",
         ["A", "A > f", "A > E"]),
        ("kt", "class A { fun f(x: Int): Int = x\n object B {} }", ["A", "A > f", "A > B"]),
        ("scala", "object A { def f(x: Int) = x }\ntrait T", ["A", "A > f", "T"]),
        ("swift", "struct A { func f(x: Int) -> Int { 1 }\n init() {} }", ["A", "A > f", "A > init"]),
        (
            "c",
            "struct stone { int a; };\ntypedef struct { int b; } pebble;\n"
            "static struct stone *make(int n) { return 0; }\nint main(void) { struct stone s; return 0; }",
            ["stone", "pebble", "make", "main"],
        ),
        (
            "cpp",
            "namespace n { template<class T> class A { public: void f() {} }; }\nint A::g() { return 1; }",
            ["n", "n > A", "n > A > f", "A::g"],
        ),
        ("cs", "namespace N { class A { public int F() => 1; public A() {} } }",
         ["N", "N > A", "N > A > F", "N > A > A"]),
        (
            "rb",
            "module M\n class A\n  # doc\n  def go(x)\n   x\n  end\n  def self.make; end\n end\nend",
            ["M", "M > A", "M > A > go", "M > A > make"],
        ),
        ("php", "<?php\nfunction f() {}\nclass A { public function g() {} }", ["f", "A", "A > g"]),
        ("sh", "set -e\nf() { echo 1; }\nfunction g { echo 2; }\nf granite",
         ["", "f", "g", TOP_LEVEL]),
        ("lua", "local function f(x) return x end\nfunction M.g() end", ["f", "M.g"]),
    ],
)  # fmt: skip
def test_definitions_of_each_language_are_found(name: str, source: str, expected: list[str]) -> None:
    assert [one for one in headings(source, name) if one or expected[0] == ""] == expected
    assert code_in(read(source, name)) == "".join(source.split())


def test_every_language_has_a_grammar_and_every_grammar_is_tried() -> None:
    code = {each.name for each in FORMATS.values() if each.doc_type == "code" and not each.is_plain}
    assert code - {"ipynb"} == GRAMMARS.keys()
    assert format_of("a/B.PYI").name == "py"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_whatever_a_file_holds_nothing_of_it_is_lost(source: str) -> None:
    wanted = "".join(source.split())
    # Readers disagree on control characters as line ends; they and the fences are ignored.
    assert re.sub(r"[\x00-\x20\x7f-\xa0\u2028\u2029`]", "", code_in(read(source))) == re.sub(
        r"[\x00-\x20\x7f-\xa0\u2028\u2029`]", "", wanted
    )


def test_backticks_in_the_code_do_not_end_its_fence() -> None:
    source = 'TEXT = """\n```\n# no heading\n````\n"""\n'
    text = read(source)
    assert text.startswith("`````py\n")
    assert headings(source) == [""]


def test_deeply_nested_or_long_code_is_read_whole() -> None:
    deep = "\n".join(f"{' ' * level}class C{level}:" for level in range(90)) + "\n" + " " * 90 + "pass"
    assert max(one.count(" > ") for one in headings(deep)) == 5
    for source in ("(" * 100_000, "{" * 100_000, "a" * 500_000, "def f(): pass\n" * 10_000):
        assert len(code_in(read(source))) == len("".join(source.split()))


def test_line_ends_and_marks_are_those_of_any_system() -> None:
    assert read("\ufeffdef f():\r\n    pass\r\n") == "# f\n\n```py\ndef f():\n    pass\n```"


def test_code_that_cannot_be_decoded_is_refused() -> None:
    refusal(reader_of(read_code, "py"), b"\xff\xfe\x00", "undecodable_text")
