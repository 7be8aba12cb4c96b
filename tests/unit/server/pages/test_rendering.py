"""Texts of documents as HTML: their structure is kept, and nothing runs, fetches or is a relative link."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api import models as m
from kb_server.pages.rendering import document_html, excerpts, text_html

ALLOWED = re.compile(
    r"</?(?:blockquote|br|code|em|hr|li|mark|ol|p|pre|s|span|strong|table|tbody|td|th|thead|tr|ul|h[2-6]|a)"
    r'(?: (?:dir="auto"|tabindex="0"|id="h\d+"|start="\d+"|class="\w{1,4}"|rel="noopener noreferrer nofollow"'
    r'|href="(?:https?://|mailto:)[^"]*"))*>'
)
HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>",
    "<style>*{}</style>", "[a](javascript:alert(1))", "[a](JaVaScRiPt&colon;alert(1))",
    "[a](data:text/html,x)", "![a](http://evil/x.png)", "[a](/documents/1/remove)", "[a](//evil.example)",
    "[a](vbscript:x)", "<javascript:alert(1)>", "[a]: javascript:x\n\n[a]",
    '[a](https://x.y/"onmouseover="alert(1))', '```"><script>alert(1)</script>\nx\n```',
    "```html\n<script>x</script>\n```", "|<script>|\n|-|\n|<b onclick=x>|", "# <iframe src=x>",
    "<a href='x' style='x'>", "&lt;script&gt;", "<!-- x -->", "`<b>`", "<mark>",
    "</pre></div><script>x</script>", "# a {onclick=x}", '[a](https://x.y \'"><b>\')', "\0<b\0>",
    "<scr<script>ipt>",
]  # fmt: skip


def document(*texts: str, doc_type: str = "markdown", filename: str = "") -> tuple[Any, Any]:
    """Return a document, and its passages with blank lines between them."""
    chunks, start = [], 0
    for index, text in enumerate(texts):
        chunks.append(m.Chunk(index, "u", index, text, None, None, start, start + len(text)))
        start += len(text) + 2
    made = SimpleNamespace(title="T", doc_type=doc_type, filename=filename)
    return made, [(chunk, chunk.text) for chunk in chunks]


def result(text: str, heading: str | None = None, doc_type: str = "markdown", filename: str = "") -> Any:
    made, [(chunk, _)] = document(text, doc_type=doc_type, filename=filename)
    return SimpleNamespace(chunk=msgspec.structs.replace(chunk, heading=heading), document=made)


def assert_harmless(html: str) -> None:
    assert re.findall(r"<[^>]*>", ALLOWED.sub("", html)) == [], html


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("doc_type", ["note", "pdf", "text", "code"])
def test_nothing_of_a_text_runs_fetches_or_is_a_relative_link(text: str, doc_type: str) -> None:
    made, passages = document(text, f"x {text}", doc_type=doc_type, filename="a.html")
    parts, _ = document_html(made, passages)
    [excerpt] = excerpts("script alert onerror href x", [result(text, text, doc_type, "a.html")])
    for html in (text_html(text, doc_type), excerpt.html, *(part.html for part in parts)):
        assert_harmless(html)


@given(st.text("<>\"'&`*_[]()!#|\\ \n:/-=aj", max_size=60), st.text('<>&"ajx', max_size=4))
def test_no_text_escapes_the_sanitizer(text: str, query: str) -> None:
    [excerpt] = excerpts(query, [result(f"{text}{HOSTILE[0]}")])
    assert_harmless(excerpt.html)


def test_the_structure_of_a_text_is_kept_across_its_passages() -> None:
    """The title is not repeated, a table of two passages is one, and each passage has its place."""
    made, passages = document(
        "# T\n\nFirst *words*.",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "## *Next* [`x`](y.md)\n\n```py\ndef f(): pass\n```",
        "text",
    )
    parts, contents = document_html(made, passages)
    assert [part.ids for part in parts] == [[0], [1], [2], [3]]
    html = "".join(part.html for part in parts)
    assert (">T</h" in html, "<em>words</em>" in html, html.count("<table")) == (False, True, 1)
    assert '<span class="k">def</span>' in html
    assert [(each.level, each.text, f'<h2 id="{each.id}"' in html) for each in contents] == [
        (2, "Next x", True)
    ]


def test_passages_of_several_documents_have_no_ids() -> None:
    """The page of results would have the same id several times."""
    for excerpt in excerpts("granite", [result("# Granite\n\nis hard")] * 2):
        assert ("</h3>" in excerpt.html, "id=" in excerpt.html) == (True, False)


def test_a_passage_that_begins_within_a_block_has_its_place_in_it() -> None:
    made, passages = document("one", "two")
    second = msgspec.structs.replace(passages[1][0], start=3, end=6)
    [part], _ = document_html(made, [passages[0], (second, "two")])
    assert (part.ids, "onetwo" in part.html) == ([0, 1], True)


def test_a_passage_within_a_table_has_its_columns() -> None:
    found = result("| 7 | basalt |\n| 8 | gneiss |", "Accounts")
    found.chunk = msgspec.structs.replace(found.chunk, table_header="| No | Name |")
    [excerpt] = excerpts("basalt", [found])
    [part], _ = document_html(found.document, [(found.chunk, found.chunk.text)])
    for html in (excerpt.html.replace("<mark>", "").replace("</mark>", ""), part.html):
        assert re.search(r"<th[^>]*>Name</th>.*basalt</td>", html, re.S)


def test_a_snippet_is_the_part_with_the_most_words_and_short_passages_need_none() -> None:
    text = "Sediment lies here. " * 30 + "**Granite** and [basalt](x.md) are hard. " + "Sand is soft. " * 30
    long, short = excerpts("granite basalt", [result(text), result("Granite is hard.")])
    words = "".join(part for part, _ in long.snippet)
    assert "Granite and basalt are hard." in words
    assert (words.startswith("… "), words.endswith(" …"), len(words) < 280) == (True, True, True)
    assert [part for part, is_marked in long.snippet if is_marked] == ["Granite", "basalt"]
    assert (short.snippet, "<mark>Granite</mark>" in short.html) == ([], True)


def test_code_is_highlighted_without_the_lines_around_it_and_large_texts_stay_as_they_are() -> None:
    made, passages = document("```py\nimport re", "x = 1\n```", doc_type="code", filename="a.py")
    parts, _ = document_html(made, passages)
    html = "".join(part.html for part in parts)
    assert ('<span class="kn">import</span>' in html, "`" in html) == (True, False)
    assert text_html("**b** " * 30_000, "note").startswith('<pre tabindex="0">**b**')
    assert "<span" not in text_html("```py\n" + "import re\n" * 400 + "```", "note")


FRONT = "---\ntitle: Hives\n---\n"


@pytest.mark.parametrize(
    ("texts", "is_folded"),
    [
        ([f"{FRONT}\n# T\n\nHoney"], True),
        ([FRONT.strip(), "# T\n\nHoney"], True),
        ([FRONT.replace("title", "<b>").replace("\n", "\r\n"), "Honey"], True),
        (["---\n\nHoney\n\n---\n\nWax"], False),
        (["---\ntitle: Honey"], False),
        (["Honey", FRONT], False),
    ],
)
def test_front_matter_is_folded_on_a_page_and_left_out_of_excerpts(texts: list[str], is_folded: bool) -> None:
    made, passages = document(*texts)
    parts, _ = document_html(made, passages)
    html = "".join(part.html for part in parts)
    folded, end, below = html.partition("</details>")
    assert (bool(end), "<h" not in html, ">Front matter<" in folded) == (is_folded,) * 3
    assert [index for part in parts for index in part.ids] == list(range(len(texts)))
    assert_harmless(folded.replace("<details><summary>Front matter</summary>", ""))
    assert "Honey" in (below if is_folded else html)
    [excerpt] = excerpts("honey", [result("\n\n".join(texts))])
    assert ("title" in excerpt.html) == ("title" in html and not is_folded)


def test_a_passage_of_front_matter_alone_is_shown_as_it_is() -> None:
    [excerpt] = excerpts("hives", [result(FRONT)])
    assert "title: <mark>Hives</mark>" in excerpt.html
    assert text_html(FRONT, "note").startswith("<details>")
