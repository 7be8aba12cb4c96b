"""Citations: quotes from documents, and the check that they are still there.

A citation identifies a quote by the document's uid, by the characters from `start` to `end` of its text, and
by a hash of exactly these characters, so that neither the text nor the cited version has to be kept. The
quote is searched at its place first, then by its first characters (`begins`), nearest first, so that only
likely places are hashed. Only notes are edited in place: in a file, which is replaced as a whole, only the
cited place is compared.

An agent gets a citation as a line of text, and returns it unchanged:

    6f1c2f0e-8a4b-4c53-9c1a-5f2f6f0c9d11:3:12:840-1205:<hash>:Pensions%20are%20revalued
    document                             version page start-end                begins
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from urllib.parse import quote as percent_encoded
from urllib.parse import unquote

import msgspec

from kb_contracts.api import models as m

_BEGINS_CHARS = 24
_TRIES = 500  # maximum number of places with the same beginning that are hashed, nearest first
_LINE = re.compile(
    r"(?P<document>[^:]+):(?P<version>\d+):(?P<page>\d*):(?P<start>\d+)-(?P<end>\d+):(?P<hash>[^:]+):"
    r"(?P<begins>[^:]+)",
    re.ASCII,
)
GONE = m.CitationCheck(status="gone", document_id=None, version=None, citation=None, text=None)
"""The check of a citation whose document does not exist."""


def with_citations(results: Iterable[m.SearchResult]) -> list[m.SearchResult]:
    """Return the results with citations of their present texts."""
    return [
        msgspec.structs.replace(
            result, citation=citation_of(result.document.uid, result.document.version, result.chunk)
        )
        for result in results
    ]


def citation_of(uid: str, version: int, chunk: m.Chunk) -> m.Citation:
    """Return the citation of a chunk's text, or of the beginning of a very long one."""
    text = chunk.text[: m.MAX_QUOTE_CHARS]
    return m.Citation(
        document=uid,
        version=version,
        page=chunk.page,
        heading=chunk.heading,
        start=chunk.start,
        end=chunk.start + len(text),
        begins=text[:_BEGINS_CHARS],
        hash=quote_hash(text),
    )


def quote_hash(text: str) -> str:
    """Return the first 128 bits of the SHA-256 of exactly this text in UTF-8, as 32 hexadecimal digits.

    128 bits are enough against a second text with the hash of a given quote. Collisions between two texts of
    the same author are possible with less effort, but deceive only that author.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Quote:
    """A quote that was found: its offset in the document's text, and its text."""

    start: int
    text: str


def find_quote(citation: m.Citation, text: str, *, begins_at: int = 0, moved: bool = False) -> Quote | None:
    """Return the quote in this text, which `begins_at` that offset of the document.

    The quote is at the cited place or, if it may have `moved`, at the nearest place to it. Return None if it
    is not found, or if `end` makes an empty or too long quote.
    """
    length = citation.end - citation.start
    if not 0 < length <= m.MAX_QUOTE_CHARS:
        return None
    cited = citation.start - begins_at
    others = islice(_occurrences(text, citation.begins, cited), _TRIES) if moved else iter(())
    for place in chain((cited,), others):
        if place >= 0 and quote_hash(words := text[place : place + length]) == citation.hash:
            return Quote(begins_at + place, words)
    return None


def _occurrences(text: str, words: str, start: int) -> Iterator[int]:
    """Yield the offsets of the words in the text, nearest to `start` first."""
    before = text.rfind(words, 0, start + len(words) - 1)
    after = text.find(words, start)
    while before >= 0 or after >= 0:
        if after < 0 or (before >= 0 and start - before <= after - start):
            yield before
            before = text.rfind(words, 0, before + len(words) - 1)
        else:
            yield after
            after = text.find(words, after + 1)


def checked(
    citation: m.Citation, document: m.Document, quote: Quote | None, chunk: m.Chunk | None
) -> m.CitationCheck:
    """Return the check of a citation of this document; `quote` was found in `chunk`, or begins there."""
    if quote is None or chunk is None:
        return m.CitationCheck(
            status="changed", document_id=document.id, version=document.version, citation=None, text=None
        )
    cited = msgspec.structs.replace(chunk, text=quote.text, start=quote.start)
    return m.CitationCheck(
        status="there" if quote.start == citation.start else "moved",
        document_id=document.id,
        version=document.version,
        citation=citation_of(document.uid, document.version, cited),
        text=quote.text,
    )


def as_line(citation: m.Citation) -> str:
    """Return the citation as a line for agents, without its heading, which is never compared."""
    page = "" if citation.page is None else citation.page
    begins = percent_encoded(citation.begins, safe="")
    place = f"{page}:{citation.start}-{citation.end}"
    return f"{citation.document}:{citation.version}:{place}:{citation.hash}:{begins}"


def from_line(line: str) -> m.Citation:
    """Return the citation of a line. Raises ValueError: the line is not a citation."""
    match = _LINE.fullmatch(line.strip()) if len(line) <= m.MAX_CITATION_CHARS else None
    if match is None:
        raise ValueError("it does not have the form of a citation")
    fields = match.groupdict()
    numbers = {name: int(fields[name]) for name in ("version", "page", "start", "end") if fields[name]}
    begins = unquote(fields["begins"], errors="strict")
    return msgspec.convert({**fields, "page": None, **numbers, "begins": begins}, m.Citation)
