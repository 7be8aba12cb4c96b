"""HTML: the visible text becomes Markdown, for any nesting and encoding."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_readers.html import read_html
from kb_readers.markdown import headings
from tests.support.reading import refusal

SOUP = [
    "<p>", "</p>", "<h1>", "</h1>", "<table>", "<tr>", "<td>", "</td>", "</tr>", "</table>", "<br>", "<hr>",
    "<ul>", "<li>", "</ul>", "<ol>", "<pre>", "</pre>", "<title>", "</title>", "<script>", "</script>",
    "<td colspan=3 rowspan=2>", "<th rowspan=0>", "<tbody>", "<rt>", "<template>", "</template>",
    "<![", "<!--", "-->", "</", "<", ">", "&", "word", "#", "```", "---",
]  # fmt: skip


def text_of(html: str) -> str:
    (page,) = read_html(html.encode()).pages
    assert page.number is None
    return page.text


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        ("<h1>A</h1><p>x  y\n z</p><h6>B", "# A\n\nx y z\n\n###### B"),
        ("a<b>b</b>c <i>d</i>", "abc d"),
        ("one<br>two<div>three</div>four", "one\ntwo\n\nthree\n\nfour"),
        ("<ul><li>a<li>b<ul><li>c</ul></ul>d", "- a\n- b\n  - c\n\nd"),
        ("<ol><li><p>a</p><p>more</p><li>b</ol>", "1. a\n\n  more\n\n2. b"),
        ("<ol start=4><li>a<li value=7>b<li>c<li value=x>d</ol>", "4. a\n7. b\n8. c\n9. d"),
        ("<ol start=0><li>a</ol><ol start=x><li>b</ol><ul start=3><li value=5>c", "0. a\n1. b\n- c"),
        (f"<ol start={'9' * 50}><li>a", "1. a"),
        ("<pre># x\n  y</pre>", "```\n# x\n  y\n```"),
        ("<pre>```\nx</pre>", "````\n```\nx\n````"),
        ("<table><tr><th>a<th>b<tr><td>1|2<td></table>", "| a | b |\n| --- | --- |\n| 1\\|2 |  |"),
        ("<tr><td><p>a</p><p>b</p><td>c</tr>", "| a b | c |\n| --- | --- |"),
        ("<table><tr><td>alone</table>", "alone"),
        ("<tr><td colspan=2>a<td>b<tr><td>1<td>2<td>3", "| a |  | b |\n| --- | --- | --- |\n| 1 | 2 | 3 |"),
        (
            "<tr><th rowspan=2>a<th colspan=2>b<th rowspan=2>c<tr><th>d<th>e<tr><td>1<td>2<td>3<td>4",
            "| a | b |  | c |\n| --- | --- | --- | --- |\n|  | d | e |\n| 1 | 2 | 3 | 4 |",
        ),
        (
            "<table><tr><td>a<td>b<tbody><tr><td rowspan=0>1<td>2<tr><td>3<tbody><tr><td>4<td>5</table>",
            "| a | b |\n| --- | --- |\n| 1 | 2 |\n|  | 3 |\n| 4 | 5 |",
        ),
        (
            "<table><tr><td rowspan=9>a<td>b</table><table><tr><td>c<td rowspan=-1 colspan=x>d<tr><td>e<td>f",
            "| a | b |\n| --- | --- |\n\n| c | d |\n| --- | --- |\n| e | f |",
        ),
        (
            "<tr><td><ul><li>a</li><li>b</li></ul><ol><li>c</ol><td>d<br>e<tr><td>f<td><div>g</div>h",
            "| a b c | d e |\n| --- | --- |\n| f | g h |",
        ),
        ("<table><tr><td><h2>T</h2>x<td>y</table>", "## T\n\nx\n\ny"),
        ("<p># no</p><p>```</p><p>x<br>---</p>", "\\# no\n\n\\```\n\nx\n\\---"),
        ("10<sup>6</sup> m<sup>-1</sup> s<sup>\u22122</sup> H<sup>+</sup>", "10^6 m^-1 s^\u22122 H^+"),
        ("2<sup><i>n</i></sup> x<sup>n+1</sup>", "2^n x^n+1"),
        ("21<sup>st</sup> XX<sup>e</sup> n<sup>o</sup> kb<sup>TM</sup>", "21st XXe no kbTM"),
        ("a<sup><a href=x>1</a></sup> b<a href=x><sup>2</sup></a> c<sup>[3]</sup>", "a1 b2 c[3]"),
        ("<a href=x>10<sup>6</sup></a> <sup>1</sup> a <sup>2</sup><p><sup>3</sup>d", "10^6 1 a 2\n\n3d"),
        ("a<sup></sup>1 <b>10</b><sup>6</sup>", "a1 10^6"),
        ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ</rt></ruby>で", "漢字で"),
        ("<ruby>漢<rp>(<rt>かん<rp>)<rb>字<rt>じ</ruby>で<p><ruby>本<rt>ほん<p>の", "漢字で\n\n本\n\nの"),
        ("<tr><td><ruby>本<rt>ほん<td>の<tr><td>a<td>b", "| 本 | の |\n| --- | --- |\n| a | b |"),
        ("&lt;p&gt; &amp;amp; &#x41; &nbsp; &copy;", "<p> &amp; A ©"),
        ("<script>x='<p>no'</script><style>p{}</style><template>no</template><noscript>no</noscript>y", "y"),
        ("<img alt='a cat' src=x><a href='http://e.com'>link</a>", "a cat link"),
        ("<form><p>in a form</p><textarea>t</textarea></form>", "in a form\n\nt"),
        ("<h1>never closed<p>text<p>more", "# never closed\n\ntext\n\nmore"),
        ("a<![if x]>b<![foo[c]]>d<!-- e -->f<?php g ?>h", "abdfh"),
        ("<hr>x<hr>", "---\n\nx\n\n---"),
        ("", ""),
        ("<p> \n </p>", ""),
    ],
)
def test_html_becomes_markdown(html: str, markdown: str) -> None:
    assert text_of(html) == markdown


@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<title> The &amp;\n title </title><h1>H</h1>", "The & title"),
        ("<title></title><h1>H</h1>", "H"),
        ("<title>\u200b</title><h1>H</h1>", "H"),
        ("<title>Untitled</title><h1>H</h1>", "H"),
        ("<h2>H</h2>", None),
        ("<head><title>never closed<body><h1>H</h1>", "never closed"),
        ("<title>A</title><svg><title>icon</title></svg><h1>H</h1>", "A"),
    ],
)
def test_the_title_is_the_pages_own_or_its_first_heading(html: str, title: str | None) -> None:
    extraction = read_html(html.encode())
    assert extraction.title == title
    assert "icon" not in extraction.pages[0].text


@pytest.mark.parametrize("tag", ["div", "ul><li", "table><tr><td", "b", "blockquote", "svg", "p"])
def test_no_nesting_is_too_deep(tag: str) -> None:
    """A tree would overflow the stack, and the text below would be lost."""
    assert "the bottom" in text_of(f"<{tag}>" * 5_000 + "the bottom")


@pytest.mark.parametrize("cell", ["<td colspan=9999999>x", "<td colspan=1000 rowspan=0>x<tr><td>y"])
def test_merged_cells_make_a_text_in_proportion_to_the_file(cell: str) -> None:
    html = f"<tr>{cell}" * 5_000
    assert len(text_of(html)) < 10 * len(html)


@pytest.mark.parametrize(
    ("html", "encoding"),
    [
        ("<p>Grüße</p>", "utf-8"),
        ("<p>Grüße</p>", "utf-8-sig"),
        ("<p>Grüße</p>", "utf-16"),
        ("<meta charset=iso-8859-1><p>Grüße “so”</p>", "cp1252"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=Shift_JIS"><p>日本語</p>', "shift_jis"),
        ('<?xml version="1.0" encoding="ISO-8859-2"?><p>žluťoučký</p>', "iso8859-2"),
        ('<meta charset="utf-16"><p>Grüße</p>', "utf-8"),
        ("<meta charset=gb2312><p>镕</p>", "gbk"),
        ("<meta charset=shift_jis><p>①</p>", "cp932"),
        ("<meta charset=big5><p>這裏是香港</p>", "cp950"),
        ("<meta charset=X-SJIS><p>①</p>", "cp932"),
        ("<meta charset=windows-31j><p>①</p>", "cp932"),
        ("<meta charset=x-gbk><p>镕</p>", "gbk"),
        ("<meta charset=iso-8859-8-i><p>שלום</p>", "iso8859-8"),
        ("<meta charset=ks_c_5601-1987><p>똠</p>", "cp949"),
    ],
)
def test_the_declared_encoding_is_read(html: str, encoding: str) -> None:
    """By byte order mark, or by declaration in the sense of browsers; otherwise UTF-8."""
    words = html.rpartition("<p>")[2].removesuffix("</p>")
    assert read_html(html.encode(encoding)).pages[0].text == words


@pytest.mark.parametrize(
    ("rows_and_cells", "words"),
    [([13, 1, 13, 74, 27, 19], "①㈱山"), ([89, 1, 90, 63, 90, 64, 92, 94], "纊泚洄＂")],
)
def test_japanese_has_what_windows_added_to_its_characters(rows_and_cells: list[int], words: str) -> None:
    """Browsers and mail programs use them, in both encodings other than Shift JIS."""
    euc = bytes(number + 0xA0 for number in rows_and_cells)
    jis = b"\x1b$B" + bytes(number + 0x20 for number in rows_and_cells) + b"\x1b(B"
    assert read_html(b"<meta charset=euc-jp>" + euc).pages[0].text == words
    assert read_html(b"<meta charset=iso-2022-jp>" + jis).pages[0].text == words


@pytest.mark.parametrize(
    "data",
    [
        b"<meta charset=euc-jp>\xad",
        b"<meta charset=euc-jp>\xad\xff",
        b"<meta charset=euc-jp>\xad!",
        b"<meta charset=euc-jp>\xa9\xa1",
        b"<meta charset=iso-2022-jp>\xad\xa1",
        b"<meta charset=iso-2022-jp>\x1b$B)!",
        b"<meta charset=iso-2022-jp>\x1b$B-",
        "<p>Grüße</p>".encode("cp1252"),
        b"<meta charset=utf-7><p>x</p>",
        b"<meta charset=no-such><p>x</p>",
        b"<meta charset=rot13><p>x</p>",
        b"<p>\0</p>",
        b"\x89PNG\r\n\x1a\n\xff\xff",
    ],
)
def test_a_page_that_cannot_be_decoded_is_refused(data: bytes) -> None:
    refusal(read_html, data, "undecodable_text")


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(st.sampled_from(SOUP), max_size=30))
def test_any_soup_of_tags_is_read(pieces: list[str]) -> None:
    text = text_of(" ".join(pieces))
    assert text == text.strip("\n")
    assert len(list(headings(text))) <= sum(piece == "<h1>" for piece in pieces)


@pytest.mark.parametrize(
    "link",
    [
        '<a class="headerlink" href="#guide">¶</a>',
        '<a href="#guide" title="Link to this heading">#</a>',
        '<a class="header-anchor" href="/page#guide"><span>\u200b</span></a>',
        '<a class="anchor" href="#guide"><svg><path d="M0"/></svg></a>',
        '<a href="#guide">🔗</a>',
    ],
)
def test_the_link_of_a_heading_to_itself_is_no_part_of_it(link: str) -> None:
    html = f"<h1>Guide{link}</h1><h2>{link}C# and {link}Go</h2><p>See{link}</p>"
    extraction = read_html(html.encode())
    assert extraction.title == "Guide"
    assert extraction.pages[0].text.startswith("# Guide\n\n## C# and Go\n\nSee")
    assert read_html(b'<h1><a href="#c">C#</a> <a href="/">&sect;</a></h1>').title == "C# §"


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ('<script>var a=1;</script language="x">after', "after"),
        ("<script>var a=1;</script/>after", "after"),
        ("<style>p{}</STYLE\n x=1 >after", "after"),
        ("<noscript>a<noscript>b</noscript>after", "after"),
        ("<noscript><!-- </noscript>after", "after"),
        ("<noscript><style></noscript x>after", "after"),
        ("<template><template>a</template>b</template>after", "after"),
        ("<div><template shadowrootmode=open><p>shown</template></div>after", "shown\n\nafter"),
    ],
)
def test_hidden_elements_hide_nothing_that_browsers_show(html: str, shown: str) -> None:
    assert text_of(html) == shown
