"""HTML into plain text with its headings as Markdown's, by the standard library's tokenizer."""

from __future__ import annotations

from html.parser import HTMLParser

from kb_simulator.engine.chunking import Page
from kb_simulator.extract.model import Extracted
from kb_simulator.extract.plain import decode

_UNSEEN = frozenset({"script", "style", "template", "noscript"})
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_BLOCKS = frozenset(
    (
        "address", "article", "aside", "blockquote", "body", "dd", "details", "div", "dl", "dt", "fieldset",
        "figure", "footer", "form", "header", "hr", "html", "li", "main", "nav", "ol", "p", "pre", "section",
        "table", "td", "th", "tr", "ul", *_HEADINGS,
    )
)  # fmt: skip


def read_html(data: bytes) -> Extracted:
    """A page as its reader sees it, block by block. Raises ExtractionFailed: `undecodable_text`."""
    page = _Page()
    page.feed(decode(data))
    page.close()
    return Extracted([Page(None, page.text())], page.title or None)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._blocks: list[str] = []
        self._words: list[str] = []
        self._title: list[str] = []
        self._unseen = 0
        self._in_title = False
        self._mark = ""

    @property
    def title(self) -> str:
        """What the element `title` says, else the first heading of the first level."""
        said = " ".join("".join(self._title).split())
        first = next((block for block in self._blocks if block.startswith("# ")), "")
        return said or first.removeprefix("# ")

    def text(self) -> str:
        """Blocks with a blank line between them."""
        self._end_block()
        return "\n\n".join(self._blocks)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a block, or something that is not shown."""
        del attrs
        self._unseen += tag in _UNSEEN
        self._in_title = self._in_title or tag == "title"
        if tag in _BLOCKS:
            self._end_block()
            self._mark = _HEADINGS.get(tag, "")
        elif tag == "br":
            self._words.append(" ")

    def handle_endtag(self, tag: str) -> None:
        """End what began."""
        self._unseen = max(0, self._unseen - (tag in _UNSEEN))
        self._in_title = self._in_title and tag != "title"
        if tag in _BLOCKS:
            self._end_block()

    def handle_data(self, data: str) -> None:
        """Keep what a reader sees."""
        if self._in_title:
            self._title.append(data)
        elif not self._unseen:
            self._words.append(data)

    def _end_block(self) -> None:
        line = " ".join("".join(self._words).split())
        if line:
            self._blocks.append(f"{self._mark} {line}" if self._mark else line)
        self._words, self._mark = [], ""
