"""Texts of documents as HTML: Markdown, tables, highlighted code, and the words of a query marked.

```
text ─▶ markdown-it, without HTML ─▶ headings below the page's own ─▶ marks ─▶ nh3 ─▶ Markup
```

nh3 is last and admits a fixed list of elements, with no style, no picture and no relative address, so that
nothing before it has to be trusted. The processor time of rendering depends on the text: it runs on one
thread, beside the event loop, and within the bounds below; a larger text is shown as it is.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import cache
from html import unescape
from itertools import groupby
from typing import Any, NamedTuple

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import find_lexer_class_by_name, find_lexer_class_for_filename, get_lexer_by_name
from pygments.token import STANDARD_TYPES
from pygments.util import ClassNotFound

from kb_contracts.api import models as m
from kb_contracts.semantics.marking import Mark, marker

_MARKDOWN_CHARS = 120_000
"""Maximum size of a text that is read as Markdown, in characters: at worst 3 s, for empty cells."""
_CODE_CHARS = 3_000
"""Maximum size of a highlighted block, in characters: lexers are quadratic for some texts, at worst 0.5 s."""
_ALL_CODE_CHARS = 20_000
"""Maximum size of all highlighted blocks of a page, in characters."""
_SNIPPET_CHARS = 260
_BEFORE_CHARS = 60
"""Characters of a snippet before its first marked word."""
_CONTENTS = 100
"""Maximum number of headings in the table of contents."""

_AS_IT_IS = {"text", "data", "image", "code"}
_WRAPPED = {"markdown", "html"}
"""Types in which a single line break is a space."""
_LANGUAGES = frozenset(
    """bash c console cpp css diff docker go html ini javascript json kotlin lua php python ruby rust scala
    sql swift toml typescript xml yaml""".split()  # noqa: SIM905 - read as words
)
"""Languages whose lexers take at most 0.5 s for `_CODE_CHARS` of any repeated text; C# takes 3 s."""
_TAG = re.compile(r"(<[^>]*>)")
_WITHIN_A_LINE = re.compile(r"</?(?:a|code|em|s|span|strong)\b[^>]*>")
_CELL = re.compile(r"(?<!\\)\|")
_FENCE = re.compile(r"\A`{3,}\w*\n|\n`{3,}\s*\Z")
"""The lines that a reader puts around source code."""
_FRONT_MATTER = re.compile(
    r"---[ \t]*\r?\n(?=[^\s:][^\n:]*:\s)(.*?)\r?\n(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL
)
"""Front matter at the beginning of a Markdown file: between two lines of dashes, a name and a colon first."""
_WEB = ("http://", "https://", "mailto:")
_OWN_ID = re.compile(r"h\d{1,6}")
_INLINE = "a br code em hr mark ol pre s span strong table tbody thead tr ul".split()  # noqa: SIM905
_BLOCKS = ("blockquote", "dd", "h2", "h3", "h4", "h5", "h6", "li", "p", "td", "th")

_SPANS = HtmlFormatter(nowrap=True)


class Passage(NamedTuple):
    """A part of a document's page. `ids` are the indexes of the passages that begin in it."""

    ids: list[int]
    page: int | None
    heading: str | None
    html: Markup


class Contents(NamedTuple):
    """A heading in the table of contents."""

    level: int
    text: str
    id: str


class Excerpt(NamedTuple):
    """A passage among results. `snippet` is empty if `html` is no longer than a snippet."""

    snippet: list[Mark]
    html: Markup


def _filtered(_tag: str, name: str, value: str) -> str | None:
    if name == "href" and not value.lower().startswith(_WEB):
        return None
    return None if name == "id" and not _OWN_ID.fullmatch(value) else value


_CLEANER = nh3.Cleaner(
    tags={*_INLINE, *_BLOCKS},
    clean_content_tags={"script", "style"},
    attributes={"*": set(), "a": {"href"}, "ol": {"start"}, **{f"h{level}": {"id"} for level in range(2, 7)}},
    attribute_filter=_filtered,
    allowed_classes={"span": set(filter(None, STANDARD_TYPES.values()))},
    # A wide table, and wide code, are scrolled: with the keyboard, too.
    set_tag_attribute_values={
        **{block: {"dir": "auto"} for block in _BLOCKS},
        "table": {"tabindex": "0"},
        "pre": {"tabindex": "0"},
    },
    url_schemes={"http", "https", "mailto"},
    link_rel="noopener noreferrer nofollow",
)  # fmt: skip


def document_html(
    document: m.Document, passages: Sequence[tuple[m.Chunk, str]]
) -> tuple[list[Passage], list[Contents]]:
    """Return the passages of one page, with their headings.

    `passages` are chunks with their texts, each without its overlap with the one before.
    """
    is_markdown = _is_markdown(document.doc_type, sum(len(text) for _, text in passages))
    if passages:  # the rows of later ones follow theirs
        (first, text), *later = passages
        passages = [(first, _below_header(first, text, is_markdown)), *later]
    if not is_markdown:
        language = _language(find_lexer_class_for_filename, document.filename)
        plain, code_left = [], _ALL_CODE_CHARS
        for chunk, text in passages:
            code_left -= len(text)
            html = _plain(_FENCE.sub("", text), language if code_left > 0 else "")
            plain.append(Passage([chunk.index], chunk.page, chunk.heading, html))
        return plain, []
    parts: list[Passage] = []
    contents: list[Contents] = []
    for page, group in groupby(passages, lambda passage: passage[0].page):
        parts += _page(list(group), page, document, contents)
    return parts, contents[:_CONTENTS]


def text_html(text: str, doc_type: str) -> Markup:
    """Return one text as HTML."""
    if not _is_markdown(doc_type, len(text)):
        return _plain(_FENCE.sub("", text))
    front, text = _split(text, doc_type)
    return front + _cleaned(_rendered(text, doc_type))


def _rendered(text: str, doc_type: str, names: Collection[str] = ()) -> str:
    """Return a Markdown text as HTML, without a heading at its beginning that is one of `names`."""
    markdown = _markdown(doc_type)
    env: dict[str, Any] = {}
    tokens = _without_first_heading(markdown.parse(text, env), names)
    _prepare(tokens, None, top=2)
    html: str = markdown.renderer.render(tokens, markdown.options, env)
    return html


def excerpts(query: str, results: Sequence[m.SearchResult]) -> list[Excerpt]:
    """Return the passages of results, with the query's words marked."""
    mark = marker(query)
    return [_excerpt(mark, result) for result in results]


def _excerpt(mark: Callable[[str], list[Mark]], result: m.SearchResult) -> Excerpt:
    chunk, document = result.chunk, result.document
    below = _split(chunk.text, document.doc_type)[1] if chunk.index == 0 else chunk.text
    if not (below.strip() and _is_markdown(document.doc_type, len(chunk.text))):
        plain = _below_header(chunk, _FENCE.sub("", chunk.text), is_markdown=False)
        html = _plain(plain, _language(find_lexer_class_for_filename, document.filename), mark)
    else:
        source = _below_header(chunk, below, is_markdown=True)
        names = {document.title, (chunk.heading or "").split(" > ")[-1]}
        rendered = _rendered(source, document.doc_type, names)
        plain = unescape(_TAG.sub(" ", _WITHIN_A_LINE.sub("", rendered)))
        html = _cleaned(_marked(rendered, mark))
    parts = _snippet(" ".join(plain.split()), mark)
    return Excerpt(parts, html)


def _snippet(text: str, mark: Callable[[str], list[Mark]]) -> list[Mark]:
    """Return the part of a text with the most marked words; nothing if the text is short."""
    if len(text) <= _SNIPPET_CHARS:
        return []
    place, best, most = 0, 0, 0
    near: deque[tuple[int, str]] = deque()
    for part, is_marked in mark(text):
        if is_marked:
            near.append((place, part.casefold()))
            while near[0][0] <= place - _SNIPPET_CHARS + _BEFORE_CHARS:
                near.popleft()
            if (words := len({word for _, word in near})) > most:
                best, most = near[0][0], words
        place += len(part)
    start = max(0, min(best - _BEFORE_CHARS, len(text) - _SNIPPET_CHARS))
    if start:
        start = text.find(" ", start, best) + 1 or start
    end = start + _SNIPPET_CHARS
    cut = text[start:end].rsplit(" ", 1)[0] if end < len(text) else text[start:]
    return mark(f"{'… ' if start else ''}{cut}{' …' if end < len(text) else ''}")


def _is_markdown(doc_type: str, chars: int) -> bool:
    return doc_type not in _AS_IT_IS and chars <= _MARKDOWN_CHARS


def _page(
    passages: Sequence[tuple[m.Chunk, str]], page: int | None, document: m.Document, contents: list[Contents]
) -> list[Passage]:
    """Return passages of one page of a document, read as one text: a table or a list may span them."""
    text, end, lines = "", passages[0][0].start, []
    for chunk, own in passages:
        text += "\n" * min(2, max(0, chunk.start - end)) if text else ""
        lines.append(text.count("\n"))
        text, end = text + own, max(end, chunk.end)
    markdown = _markdown(document.doc_type)
    env: dict[str, Any] = {}
    is_first = passages[0][0].index == 0
    front, text = _split(text, document.doc_type) if is_first else (Markup(), text)
    tokens = _without_first_heading(markdown.parse(text, env), {document.title} if is_first else set())
    _prepare(tokens, contents)
    parts: list[tuple[list[int], list[Token]]] = []
    place = 0
    for token in tokens:
        if token.level == 0 and token.nesting >= 0 and token.map is not None:
            begun: list[int] = []
            while place < len(lines) and (lines[place] <= token.map[0] or not (parts or begun)):
                begun.append(passages[place][0].index)
                place += 1
            if begun:
                parts.append((begun, []))
        if parts:
            parts[-1][1].append(token)
    if not parts:
        parts.append(([], []))
    parts[-1][0].extend(chunk.index for chunk, _ in passages[place:])
    pieces = [
        Passage(ids, page, None, _cleaned(markdown.renderer.render(group, markdown.options, env)))
        for ids, group in parts
    ]
    return [pieces[0]._replace(html=front + pieces[0].html), *pieces[1:]]


def _split(text: str, doc_type: str) -> tuple[Markup, str]:
    """Return the front matter of a Markdown text, folded, and the text with blank lines in its place."""
    found = _FRONT_MATTER.match(text) if doc_type in ("markdown", "note") else None
    if found is None:
        return Markup(), text
    folded = Markup("<details><summary>Front matter</summary>{}</details>").format(_plain(found[1], "yaml"))
    return folded, "\n" * found[0].count("\n") + text[found.end() :]


def _without_first_heading(tokens: list[Token], names: Collection[str]) -> list[Token]:
    """Return the tokens without a heading at the beginning that the page shows already."""
    is_repeated = len(tokens) > 2 and tokens[0].type == "heading_open" and tokens[1].content in names
    return tokens[3:] if is_repeated else tokens


def _prepare(tokens: list[Token], contents: list[Contents] | None, top: int = 1) -> None:
    """Put headings below the page's own, of level `top`, and bound the highlighting.

    Headings get ids if they are collected in `contents`.
    """
    code_left = _ALL_CODE_CHARS
    above: list[int] = []
    for token, following in zip(tokens, tokens[1:] + tokens[-1:], strict=True):
        if token.type == "fence":
            code_left -= len(token.content)
            token.info = token.info if code_left > 0 else ""
        elif token.type in ("heading_open", "heading_close"):
            if token.type == "heading_open":
                own = int(token.tag[1:])
                above = [*(level for level in above if level < own), own]
            level = min(6, top + len(above))
            token.tag = f"h{level}"
            if token.type == "heading_open" and contents is not None:
                token.attrSet("id", f"h{len(contents)}")
                text = "".join(
                    each.content or " " * each.type.endswith("break") for each in following.children or ()
                )
                contents.append(Contents(level, text, f"h{len(contents)}"))


def _below_header(chunk: m.Chunk, text: str, is_markdown: bool) -> str:
    """Return the text of a passage below the header row of its table, if it begins within one."""
    header = chunk.table_header
    if not header:
        return text
    rule = "|-" * len(_CELL.split(header.strip("| "))) + "|\n" if is_markdown and text.startswith("|") else ""
    return f"{header}\n{rule}{text}"


@cache
def _markdown(doc_type: str) -> MarkdownIt:
    options = {"html": False, "breaks": doc_type not in _WRAPPED, "highlight": _highlighted}
    markdown = MarkdownIt("commonmark", options).enable(["table", "strikethrough"])
    markdown.add_render_rule("image", _picture)
    if doc_type not in {*_WRAPPED, "note"}:
        markdown.disable("code")  # a reader's indentation is no code
    return markdown


def _picture(_renderer: object, tokens: Sequence[Token], place: int, _options: object, _env: object) -> str:
    """Return the words of a picture: nothing is fetched from elsewhere."""
    return f"<em>{escape(tokens[place].content)}</em>"


def _highlighted(code: str, language: str, _attributes: str) -> str:
    """Return a block of code as HTML; empty if it is of no known language, or large."""
    known = _language(find_lexer_class_by_name, language) if len(code) <= _CODE_CHARS else ""
    return highlight(code, get_lexer_by_name(known, stripnl=False), _SPANS) if known else ""


def _language(find: Callable[[str], Any], name: str | None) -> str:
    """Return the language that Pygments finds for a name; empty if it is not among `_LANGUAGES`."""
    try:
        found = find(name or "")
    except ClassNotFound:
        return ""
    return next((name for name in getattr(found, "aliases", ()) if name in _LANGUAGES), "")


def _plain(text: str, language: str = "", mark: Callable[[str], list[Mark]] | None = None) -> Markup:
    """Return a text with its lines and spaces, highlighted if `language` is known."""
    html = _highlighted(text, language, "") or str(escape(text))
    return _cleaned(f"<pre>\n{_marked(html, mark) if mark else html}</pre>")


def _marked(html: str, mark: Callable[[str], list[Mark]]) -> str:
    """Return HTML with marks in its texts."""
    parts = _TAG.split(html)
    parts[::2] = [
        "".join(
            f"<mark>{escape(each)}</mark>" if is_marked else str(escape(each))
            for each, is_marked in mark(unescape(part))
        )
        for part in parts[::2]
    ]
    return "".join(parts)


def _cleaned(html: str) -> Markup:
    return Markup(_CLEANER.clean(html))  # noqa: S704 - this is the sanitizer
