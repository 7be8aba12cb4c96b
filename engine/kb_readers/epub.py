"""EPUB: the documents of a book in reading order, each a page without a number."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import damaged, locked
from kb_readers.html import read_html
from kb_readers.markdown import given_title
from kb_readers.model import Extraction, Page, TextBudget
from kb_readers.xml_files import Archive, Attributes, Handler

_FORMAT = FORMATS["epub"]
_FONTS = frozenset(["http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"])
"""Algorithms that obfuscate fonts only, and no text."""
_DOCUMENTS = frozenset(["application/xhtml+xml", "text/html"])


def read_epub(data: bytes) -> Extraction:
    """Return the whole book. Raises ExtractionFailed: `file_encrypted` if its text is encrypted."""
    archive = Archive(data, _FORMAT.label)
    packages = archive.elements("META-INF/container.xml", "rootfile", is_optional=False).attributes
    methods = archive.elements("META-INF/encryption.xml", "EncryptionMethod").attributes
    if any(each.get("Algorithm") not in _FONTS for each in methods):
        raise locked(_FORMAT.label)
    package = next(filter(None, (each.get("full-path") for each in packages)), "")
    book = _Book(posixpath.dirname(package))
    archive.feed(package, book)
    pages, budget = [], TextBudget()
    for part in book.read_in_order():
        text = read_html(archive.read(part)).pages[0].text
        budget.spend(text)
        if text.strip():
            pages.append(Page(None, text))
    if not book.order:
        raise damaged(_FORMAT.label, "it names nothing to read")
    return Extraction(pages, given_title(book.title), "text_extraction", _FORMAT.mime_type)


class _Book(Handler):
    """The package document: the title, and the documents by id, in the order of the spine."""

    def __init__(self, folder: str) -> None:
        self.title = ""
        self.order: list[str] = []
        self._folder = folder
        self._documents: dict[str, str] = {}
        self._in_title = False

    def read_in_order(self) -> list[str]:
        """Return the parts in reading order, without repetitions."""
        parts = (self._documents[one] for one in self.order if one in self._documents)
        return list(dict.fromkeys(parts))

    def start(self, name: str, attributes: Attributes) -> None:
        self._in_title = name == "title" and not self.title
        if name == "item" and attributes.get("media-type") in _DOCUMENTS:
            if "nav" not in attributes.get("properties", "").split():
                path = unquote(attributes.get("href", "").partition("#")[0])
                part = posixpath.normpath(posixpath.join("/", self._folder, path)).lstrip("/")
                self._documents[attributes.get("id", "")] = part
        elif name == "itemref":
            self.order.append(attributes.get("idref", ""))

    def end(self, _name: str) -> None:
        self._in_title = False

    def characters(self, text: str) -> None:
        if self._in_title:
            self.title += text[:1_000]
