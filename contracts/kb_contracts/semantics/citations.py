"""Citations: what an answer rests on, and whether it still stands there.

A citation names a quote by the document's uid, by the characters from `start` to `end` of its text, and by a
hash of exactly these characters, so that nobody has to keep the text or the version that was cited. It is
looked for at its place first, then by its first characters (`begins`), nearest first, so that no place of the
text is hashed in vain. Only notes are edited: of a file, which is replaced as a whole, the place alone is
compared.

An agent is given one as a line of text, and hands it back as it came:

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
_TRIES = 500  # places that begin as the quote does; of these the nearest are hashed
_LINE = re.compile(
    r"(?P<document>[^:]+):(?P<version>\d+):(?P<page>\d*):(?P<start>\d+)-(?P<end>\d+):(?P<hash>[^:]+):"
    r"(?P<begins>[^:]+)",
    re.ASCII,
)
GONE = m.CitationCheck(status="gone", document_id=None, version=None, citation=None, text=None)
"""What is said of a citation whose document is not there."""


def with_citations(results: Iterable[m.SearchResult]) -> list[m.SearchResult]:
    """The results with citations of their texts as they are."""
    return [
        msgspec.structs.replace(
            result, citation=citation_of(result.document.uid, result.document.version, result.chunk)
        )
        for result in results
    ]


def citation_of(uid: str, version: int, chunk: m.Chunk) -> m.Citation:
    """The citation of a chunk's text, which may be cut at its end; of a very long one, of its beginning."""
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
    """The first 128 bits of the SHA-256 of exactly this text in UTF-8, as 32 hexadecimal digits.

    That no other text has the same, and none can be made for a given quote, takes no more; two texts made
    to agree with each other would deceive only whoever made them.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Quote:
    """A quote that was found: where it begins in the document's text, and what it says."""

    start: int
    text: str


def find_quote(citation: m.Citation, text: str, *, begins_at: int = 0, moved: bool = False) -> Quote | None:
    """The quote in this text, which `begins_at` that place of the document's.

    It stands where it was cited, or, if it may have `moved`, nearest to there; None: it is not found. An
    `end` that makes no quote, or too long a one, finds none.
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
    """Where the words stand in the text, nearest to `start` first."""
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
    """What is said of a citation of this document; `quote` was found in this `chunk`, or from it on."""
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
    """The citation as an agent is given it. Its heading is left out: nothing is compared with that."""
    page = "" if citation.page is None else citation.page
    begins = percent_encoded(citation.begins, safe="")
    place = f"{page}:{citation.start}-{citation.end}"
    return f"{citation.document}:{citation.version}:{place}:{citation.hash}:{begins}"


def from_line(line: str) -> m.Citation:
    """The citation that a line stands for.

    Raises:
        ValueError: it is none.
    """
    match = _LINE.fullmatch(line.strip()) if len(line) <= m.MAX_CITATION_CHARS else None
    if match is None:
        raise ValueError("it has not the form of a citation")
    fields = match.groupdict()
    numbers = {name: int(fields[name]) for name in ("version", "page", "start", "end") if fields[name]}
    begins = unquote(fields["begins"], errors="strict")
    return msgspec.convert({**fields, "page": None, **numbers, "begins": begins}, m.Citation)
