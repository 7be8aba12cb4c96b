"""A source: the pages that a sitemap or a feed lists, fetched as `kb add URL` fetches them.

    URL ─▶ a sitemap ─▶ its pages
        ├▶ an index of sitemaps ─▶ each of them, at most `MOST_LISTS`
        └▶ an Atom or RSS feed ─▶ its entries, which are the newest: older ones are not taken as deleted

A page is not fetched again if the list has its time of change to the second, and it is the known one; all
others are requested with the conditions of the last fetch. A page belongs to its list by the metadata of its
document: pages of the same site from elsewhere stay.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from xml.parsers import expat

from kb_cli import web
from kb_cli.properties import Details
from kb_cli.sync.source import Entry, LeftOut, Remote, Unavailable, Unchanged
from kb_contracts.api import models as m
from kb_readers.failures import ExtractionFailed
from kb_readers.xml_files import Attributes, Handler, parser_for

MOST_LISTS = 1_000
"""Maximum number of sitemaps that an index leads to."""
MOST_LIST_BYTES = 64 << 20
"""Maximum size of a sitemap or feed, unpacked, in bytes."""
FROM = "synced_from"
"""The member of metadata that has the address of the list."""
PAGE = "synced_page"
"""The member of metadata that has the address of the page."""

_LONGEST = 4_000
_BLOCK = 1 << 18
_ROWS = ("sitemap", "url", "item", "entry")
"""Elements of an entry."""
_FEEDS = ("rss", "feed", "RDF")
_CHANGED = ("lastmod", "updated")


class Row(NamedTuple):
    """An entry of a list; `is_list` if it is a list itself."""

    is_list: bool
    url: str
    changed: str


class Site(Remote):
    """The pages of a sitemap or feed. Without `any_site`, only addresses of the same host are taken."""

    are_files = False

    def __init__(self, url: str, home: Path, *, private: bool, any_site: bool, whole_page: bool) -> None:
        super().__init__(url, "http", home, " --whole-page" if whole_page else "")
        self._any_site, self._whole_page = any_site, whole_page
        self._fetch = partial(web.fetch, is_allowed=web.address_rule(private=private))
        self._host = web.parsed(url).host
        self._has_feed = False

    @property
    def is_whole(self) -> bool:
        """False for a feed."""
        return not self._has_feed

    def details_of(self, source: str) -> Details:
        """Return the addresses of list and page."""
        return Details(metadata={FROM: self.name, PAGE: source})

    def owns(self, document: m.Document, source: str) -> bool:
        """True if the document came from this list, under this address.

        Other sources of the document are pages of the same content: those that this list had, and others.
        """
        is_from_here = document.metadata.get(FROM) == self.name and self._is_taken(source)
        return is_from_here and (document.metadata.get(PAGE) == source or source in self._known)

    def entries(self) -> Iterator[Entry]:
        """Yield the pages of all lists, each once. A list that cannot be read does not stop the others."""
        self._has_feed = False
        lists, pages, failures, others = [self.name], set[str](), [], 0
        for place in lists:
            try:
                rows = self._rows(place)
            except (web.NotFetched, Unavailable) as error:
                failures.append(f"{place}: {error}")
                continue
            for row in rows:
                url = row.url.strip().partition("#")[0]
                if not self._is_taken(url):
                    others += 1
                elif row.is_list:
                    if url not in lists:
                        lists.append(url)
                    if len(lists) > MOST_LISTS:
                        raise Unavailable(f"it leads to more than {MOST_LISTS:,} sitemaps")
                elif url not in pages:
                    pages.add(url)
                    # A day says too little: a page may change twice in it.
                    yield Entry(url, mark=row.changed.strip()[:100] if "T" in row.changed else "")
        if others and not pages:
            failures.append(f"all its addresses are of other hosts than {self._host}; --any-site takes them")
        if failures:
            raise Unavailable(failures[0])

    def fetched(self, source: str, folder: Path, conditions: Mapping[str, str]) -> web.Fetched:
        """Return the page, reduced to its main text."""
        try:
            found = self._fetch(source, folder, conditions=conditions)
        except web.NotSupported as error:
            raise LeftOut(str(error)) from error
        except web.NotFetched as error:
            if conditions and isinstance(error, web.NotModified):
                raise Unchanged from error
            raise Unavailable(str(error)) from error
        if not self._whole_page:
            web.reduce_to_main_text(found.path)
        return found

    def _is_taken(self, url: str) -> bool:
        try:
            return self._any_site or web.parsed(url).host == self._host
        except web.NotFetched:
            return False

    def _rows(self, place: str) -> list[Row]:
        """Return the entries of a list."""
        with TemporaryDirectory(prefix="kb-sync-") as folder:
            root, rows = rows_of(self._fetch(place, Path(folder), name="list").path)
            self._has_feed = self._has_feed or root in _FEEDS
            return rows


def rows_of(path: Path) -> tuple[str, list[Row]]:
    """Return the root and the entries of a sitemap, an index, or a feed, which may be compressed by gzip.
    Raises Unavailable: it is none, is cut short, or is too large.
    """
    handler = _Rows()
    parser = parser_for(handler, "list")
    parser.StartDoctypeDeclHandler = _refuse
    with path.open("rb") as plain:
        is_packed = plain.read(2) == b"\x1f\x8b"
    size = 0
    try:
        with gzip.open(path) if is_packed else path.open("rb") as file:
            while block := file.read(_BLOCK):
                size += len(block)
                if size > MOST_LIST_BYTES:
                    raise Unavailable(f"it has more than {MOST_LIST_BYTES >> 20} MiB")
                parser.Parse(block, False)
            parser.Parse(b"", True)
    except (
        OSError,
        EOFError,
        LookupError,
        ValueError,
        zlib.error,
        expat.ExpatError,
        ExtractionFailed,
    ) as error:
        raise Unavailable(f"it is not a complete sitemap or feed: {error}") from error
    if handler.root not in ("urlset", "sitemapindex", *_FEEDS):
        raise Unavailable(f"it is neither a sitemap nor a feed, but a document {handler.root[:80]!r}")
    return handler.root, handler.rows


def _refuse(*_: object) -> None:
    raise Unavailable("it has a document type declaration")


class _Rows(Handler):
    """Collects the entries. `link` of Atom has its address in an attribute, that of RSS as text."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.root = ""
        self._path: list[str] = []
        self._url = self._changed = self._text = ""

    def start(self, name: str, attributes: Attributes) -> None:
        self.root = self.root or name
        is_member = self._path[-1:] and self._path[-1] in _ROWS
        self._path.append(name)
        self._text = ""
        if name in _ROWS:
            self._url = self._changed = ""
        elif name == "link" and is_member and attributes.get("rel", "alternate") == "alternate":
            self._url = self._url or attributes.get("href", "")

    def characters(self, text: str) -> None:
        if len(self._text) < _LONGEST:
            self._text += text

    def end(self, name: str) -> None:
        self._path.pop()
        is_member = bool(self._path) and self._path[-1] in _ROWS
        if is_member and name in ("loc", "link"):
            self._url = self._url or self._text
        elif is_member and name in _CHANGED:
            self._changed = self._text
        elif name in _ROWS and self._url:
            self.rows.append(Row(name == "sitemap", self._url, self._changed))
        self._text = ""
