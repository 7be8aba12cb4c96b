"""The main text of a web page: the page without navigation, banners, sidebars and footers.

The main text is the smallest element that holds most prose of the page, or nearly all of its `main` element,
and the elements around it that add few words, without the parts that their element, ARIA role, class, id or
share of links marks as navigation or advertising. One pass of the standard library's tokenizer finds the
elements and counts their words; nothing depends on the nesting depth. Parts are cut out of the source, and
the HTML reader reads the remaining page as any other.
"""

from __future__ import annotations

import re
import resource
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from kb_readers.html import Tokenizer, find_encoding
from kb_readers.text import decode

_LEAST_SHARE = 1 / 4  # minimum share of the page's words in the main text; with less the whole page is kept
_NEARLY_ALL = 0.92  # share of the prose of the page's `main` element that the main text has
_MOST = 0.75  # share of the page's prose that the main text has if there is no `main` element
_SURROUNDINGS = 1.2
"""Maximum ratio of the words of the main text with its title and summary to the words without them."""
_LARGEST_PART = 0.4  # maximum share of the prose in a part that its class or id marks as no main text
_LINKS = 0.6  # minimum share of words in links in a list of links
_LARGEST_COMMENTS = 0.5
"""Maximum share of the prose in comments on the main text; with more the page is a discussion."""
_PROSE_WORDS = 10  # minimum words of a paragraph of prose

# Elements whose end tag is required: a missing end tag of a paragraph or a list item ends no element.
_ELEMENTS = frozenset(
    """article aside blockquote center details dialog div dl fieldset figure footer form header main nav ol
    pre section table ul""".split()  # noqa: SIM905 - read as words
)
_HEADINGS = frozenset(f"h{level}" for level in range(1, 7))
_PARAGRAPHS = _HEADINGS | {"p", "li", "dd", "dt", "td", "th", "tr", "hr"}
_HIDDEN = frozenset(["script", "style", "template", "noscript", "title"])
_ROLES = frozenset(
    "alertdialog banner complementary contentinfo dialog menu menubar navigation search".split()  # noqa: SIM905
)
_NAMES = re.compile(
    r"(?<![a-z])(?:ads?|advert\w*|[a-z]*banner|breadcrumbs?|byline|consent|cookies?|dialog|[a-z]*footer|gdpr|"
    r"masthead|[a-z]*menu|nav|[a-z]*navbar|navi|[a-z]*navigation|newsletter|outbrain|pager|pagination|popup|"
    r"promo(?!ted)\w*|"
    r"recommend\w*|related\w*|shar(?:e|ing)\w*|[a-z]*sidebar\w*|skip\w*|social\w*|sponsor\w*|subscri\w*|"
    r"taboola|tags|teasers?|toc|toolbar|topbar)(?![a-z])"
)
_COMMENTS = re.compile(r"(?<![a-z])(?:comments?(?:list|s?container)?|disqus|kommentare?|respond)(?![a-z])")
_NOTES = re.compile(r"(?:^|[^a-z])(?:admonition|callout|footnote\w*|note|tip|topic|warning)(?![a-z])")
_SIDEBAR = re.compile(r"(?:^| )aside(?: |$)")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MEMORY_BYTES = 1 << 30  # address space of the process that reduces a page
# A word, or a character of a script without spaces between words.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")


class Article(NamedTuple):
    """A page reduced to its main text."""

    html: str  # the page without the parts left out
    words: int  # number of words of the whole page
    left_out: int  # number of words left out; 0 if the whole page is kept


def article_of(html: str) -> Article:
    """Return the main text of a page; the whole page if less than a quarter of its words would remain."""
    page = _Page(html)
    whole = page.elements[0]
    _weigh(page.elements)
    root = _smallest(page.elements)
    outermost = (each for each in page.elements if each.apart and each.parent and not each.parent.apart)
    apart = [each for each in outermost if root.start <= each.start < root.end]
    kept = root.words - sum(each.words for each in apart)
    if not whole.words * _LEAST_SHARE <= kept < whole.words:
        return Article(html, whole.words, 0)
    pieces = [html[: page.body]]
    if not root.titles and page.title and page.title[1] <= root.start:
        pieces.append(html[slice(*page.title)])
        kept += page.title_words
    at = root.start
    for each in apart:
        pieces.append(html[at : each.start])
        at = each.end
    return Article("".join([*pieces, html[at : root.end]]), whole.words, whole.words - kept)


@dataclass(slots=True)
class _Element:
    """An element of the page. Counts include the elements in it, `clean` those that are not apart."""

    tag: str
    start: int
    parent: _Element | None
    named_apart: bool = False
    in_comment: bool = False
    is_marked: bool = False  # in an element that its name marks as no main text, or such an element
    is_main: bool = False
    end: int = 0
    words: int = 0
    links: int = 0  # words in links
    prose: int = 0  # words in paragraphs of some length, and in code
    own_words: int = 0
    own_prose: int = 0
    headings: int = 0
    titles: int = 0  # headings of level 1
    apart: bool = False
    kept: int = 0  # words that are not apart
    clean: int = 0  # prose that is not apart


def _weigh(elements: Sequence[_Element]) -> None:
    """Decide for each element whether it is apart from the main text, and count the prose of the rest."""
    whole = elements[0].prose
    comments = sum(each.own_prose for each in elements if each.in_comment)
    for each in elements[1:]:
        assert each.parent is not None
        is_comment = each.in_comment and comments <= whole * _LARGEST_COMMENTS
        is_part = each.prose <= whole * _LARGEST_PART and _is_apart(each)
        each.apart = each.parent.apart or is_comment or is_part
    for each in reversed(elements):
        if not each.apart:
            each.kept += each.own_words
            each.clean += each.own_prose
        if each.parent is not None:
            each.parent.kept += each.kept
            each.parent.clean += each.clean


def _is_apart(element: _Element) -> bool:
    match element.tag:
        case "nav" | "footer" | "dialog":
            return True
        case "header":
            return not element.headings
    if element.titles:
        return False
    return element.named_apart or (
        element.tag != "pre" and not element.prose and element.links > max(5, element.words * _LINKS)
    )


def _smallest(elements: Sequence[_Element]) -> _Element:
    """Return the smallest element that holds most prose of the page, or nearly all of its main element."""
    top, share = elements[0], _MOST
    for each in elements:
        if (
            each.is_main
            and each.clean >= elements[0].clean * _LEAST_SHARE
            and (share == _MOST or each.clean > top.clean)
        ):
            top, share = each, _NEARLY_ALL
    if not top.clean:
        return top
    least = top.clean * share
    # They lie one in another, since each has more than half of the prose.
    smallest = top
    for each in elements:
        if top.start <= each.start < top.end and each.clean >= least and not each.is_marked:
            smallest = each
    return _with_surroundings(smallest, top)


def _with_surroundings(element: _Element, top: _Element) -> _Element:
    """Return the outermost element around it that adds few words, such as a title and a summary."""
    found = element
    around: _Element | None = element
    while around is not None and around is not top.parent:
        if around.kept <= element.kept * _SURROUNDINGS:
            found = around
        around = around.parent
    return found


class _Page(Tokenizer):
    """Finds the elements of a page with their places and counts; the first one is the whole page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self._lines = [0, *accumulate(len(line) + 1 for line in html.split("\n"))]
        self._html = html
        self.body = 0  # offset after the head of the page
        self.title: tuple[int, int] | None = None
        """The first heading of level 1 that is in no element apart by name."""
        self.title_words = 0
        self._title_start = -1
        self.elements = [_Element("body", 0, None)]
        self._open = [self.elements[0]]
        self._open_tags: Counter[str] = Counter()
        self._hidden = ""
        self._hidden_depth = 0
        self._links = 0
        self._words = self._link_words = 0  # of the paragraph
        self.feed(html)
        self.close()
        self._end_paragraph()
        while self._open:
            self._end_element(len(html))
        self.elements[0].start = self.body

    @property
    def _place(self) -> int:
        line, column = self.getpos()
        return self._lines[line - 1] + column

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden:
            self._hidden_depth += tag == self._hidden
        elif tag in _HIDDEN:
            self._hidden, self._hidden_depth = tag, 1
        elif tag == "a":
            self._links = 1
        elif tag == "body" and len(self.elements) == 1:
            self.body = self._place + len(self.get_starttag_text() or "")
        elif tag in _ELEMENTS:
            self._start_element(tag, dict(attrs))
        elif tag in _PARAGRAPHS:
            self._end_paragraph()
            if tag in _HEADINGS:
                self._open[-1].headings += 1
            if tag == "h1":
                self._open[-1].titles += 1
                self._title_start = self._place

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            self._hidden_depth -= tag == self._hidden
            if not self._hidden_depth:
                self._hidden = ""
                if tag == "title" and len(self.elements) == 1:
                    self.body = max(self.body, self._end_of_tag())
        elif tag == "a":
            self._links = 0
        elif tag == "head" and len(self.elements) == 1:
            self.body = self._end_of_tag()
        elif tag in _ELEMENTS:
            self._end_paragraph()
            if self._open_tags[tag]:
                end = self._end_of_tag()
                while self._open[-1].tag != tag:
                    self._end_element(self._place)
                self._end_element(end)
        elif tag in _PARAGRAPHS:
            if tag == "h1" and self._title_start >= 0:
                if self.title is None and not self._open_tags["nav"]:
                    self.title, self.title_words = (self._title_start, self._end_of_tag()), self._words
                self._title_start = -1
            self._end_paragraph()

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            words = sum(1 for _ in _WORD.finditer(data))
            self._words += words
            self._link_words += words * self._links

    def _end_of_tag(self) -> int:
        return self._html.find(">", self._place) + 1 or len(self._html)

    def _start_element(self, tag: str, attrs: dict[str, str | None]) -> None:
        self._end_paragraph()
        role = (attrs.get("role") or "").lower()
        name = _CAMEL.sub(" ", f"{attrs.get('class') or ''} {attrs.get('id') or ''}").lower()
        parent = self._open[-1]
        is_sidebar = tag == "aside" or _SIDEBAR.search(name) is not None
        is_named = bool(_NAMES.search(name)) or (is_sidebar and not _NOTES.search(name))
        named_apart = role in _ROLES or is_named
        in_comment = parent.in_comment or bool(_COMMENTS.search(name))
        self._open.append(
            _Element(
                tag,
                self._place,
                parent,
                named_apart=named_apart,
                in_comment=in_comment,
                is_marked=parent.is_marked or named_apart or in_comment,
                is_main=tag == "main" or role == "main",
            )
        )
        self.elements.append(self._open[-1])
        self._open_tags[tag] += 1

    def _end_element(self, end: int) -> None:
        element = self._open.pop()
        self._open_tags[element.tag] -= 1
        element.end = end
        if (parent := element.parent) is not None:
            parent.words += element.words
            parent.links += element.links
            parent.prose += element.prose
            parent.headings += element.headings
            parent.titles += element.titles

    def _end_paragraph(self) -> None:
        if self._words:
            element = self._open[-1]
            element.words += self._words
            element.own_words += self._words
            element.links += self._link_words
            if element.tag == "pre" or (self._words >= _PROSE_WORDS and self._link_words * 2 < self._words):
                element.prose += self._words
                element.own_prose += self._words
            self._words = self._link_words = 0


def reduce_file(path: Path) -> Article:
    """Reduce a file of HTML to its main text, in UTF-8 with a byte order mark. Raises ExtractionFailed."""
    data = path.read_bytes()
    article = article_of(decode(data, find_encoding(data)))
    if article.left_out:
        reduced = path.with_name(f"{path.name}.reduced")
        reduced.write_bytes(article.html.encode("utf-8-sig"))
        reduced.replace(path)
    return article


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    _, words, left_out = reduce_file(Path(sys.argv[1]))
    sys.stdout.write(f"{words} {left_out}")
