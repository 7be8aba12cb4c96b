"""Data sets for evaluation: a folder in BEIR's layout, or a user's own files of questions.

    corpus.jsonl       {"_id": "d1", "title": "...", "text": "..."}
    queries.jsonl      {"_id": "q1", "text": "..."}
    qrels/test.tsv     query-id <tab> corpus-id <tab> score, with or without this header

Files are read line by line, and every error is reported with its file and line before ingestion begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from kb_cli.evaluation.metrics import Gains
from kb_cli.output import CliError, UsageError
from kb_contracts.api import models as m

T = TypeVar("T")
Position = Literal["all", "odd", "even"]

_LINE_BYTES = 16 * 1024 * 1024
_HEADER = "query-id"


class Document(msgspec.Struct, frozen=True):
    """A line of the corpus. The text may be empty if there is a title."""

    id: str = msgspec.field(name="_id")
    text: str
    title: str = ""

    @property
    def indexed_text(self) -> str:
        """The text, or the title if the text is empty; empty if the document has neither."""
        return self.text if self.text.strip() else self.title.strip()


class OwnQuestion(msgspec.Struct, frozen=True):
    """A line of a user's own file; `document` is the id, uid, source path or title of the answer."""

    question: str
    document: str | int | None = None


class _Query(msgspec.Struct, frozen=True):
    id: str = msgspec.field(name="_id")
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the relevance of documents; empty if no document answers it."""

    id: str
    text: str
    gains: Gains


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file, counted from 1."""

    file: Path
    number: int

    def wrong(self, what: str) -> CliError:
        """Return the error to raise for this line."""
        return UsageError(f"{self.file}, line {self.number}: {what}")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A checked folder; `documents` counts the documents with any text."""

    folder: Path
    documents: int
    questions: list[Question]

    @classmethod
    def read(cls, folder: Path, position: Position = "all") -> Dataset:
        """Check the whole folder. `position` keeps only every second query, the first being odd.

        Questions without a relevant document are omitted.
        Raises CliError: a file is missing, or a line of it is invalid.
        """
        ids, documents = set(), 0
        for line, document in lines(folder / "corpus.jsonl", Document):
            if document.id in ids:
                raise line.wrong(f"the document {document.id!r} is a duplicate; ids must be unique")
            if len(document.text) > m.MAX_NOTE_CHARS:
                raise line.wrong(f"a text of more than {m.MAX_NOTE_CHARS:,} characters; split the document")
            ids.add(document.id)
            documents += bool(document.indexed_text)
        if not documents:
            raise UsageError(f"{folder / 'corpus.jsonl'}: no document in it has any text")
        queries: dict[str, str] = {}
        for line, query in lines(folder / "queries.jsonl", _Query):
            if query.id in queries:
                raise line.wrong(f"the query {query.id!r} is a duplicate; ids must be unique")
            queries[query.id] = checked_question(line, query.text)
        gains = _gains(folder / "qrels" / "test.tsv", ids, queries)
        judged = [
            Question(id_, text, gains[id_])
            for id_, text in at_position(list(queries.items()), position)
            if any(gain > 0 for gain in gains.get(id_, {}).values())
        ]
        if not judged:
            raise UsageError(f"{folder}: none of the queries asked has a relevant document")
        return cls(folder, documents, judged)

    def notes(self) -> Iterator[tuple[Line, str, m.NoteRequest]]:
        """Yield each document with text: its line, its id, and the note to ingest.

        Each has a deduplication scope of its own, so that documents with equal texts remain separate.
        """
        for line, document in lines(self.folder / "corpus.jsonl", Document):
            if text := document.indexed_text:
                title = document.title.strip()[: m.MAX_TITLE_CHARS] or None
                yield line, document.id, m.NoteRequest(text=text, title=title, dedup_scope=str(line.number))


def own_questions(path: Path, position: Position = "all") -> list[tuple[Line, OwnQuestion]]:
    """Return the questions of a user's own file.
    Raises CliError: the file is missing, empty, or has an invalid line.
    """
    found = []
    for line, own in lines(path, OwnQuestion):
        checked_question(line, own.question)
        found.append((line, own))
    if not found:
        raise UsageError(f'{path}: no question in it; write lines like {{"question": "..."}}')
    return at_position(found, position)


def at_position(items: list[T], position: Position) -> list[T]:
    """Return all items, or the items at odd or even places, counted from 1."""
    return items[{"all": 0, "odd": 0, "even": 1}[position] :: 1 if position == "all" else 2]


def checked_question(line: Line, text: str) -> str:
    """Return the question if an engine would accept it. Raises CliError."""
    if not text.strip():
        raise line.wrong("the question is empty")
    if len(text) > m.MAX_QUERY_CHARS:
        raise line.wrong(f"a question of more than {m.MAX_QUERY_CHARS:,} characters; shorten it")
    return text


def lines(path: Path, kind: type[T]) -> Iterator[tuple[Line, T]]:
    """Yield the lines of a file of JSON lines that are not blank.
    Raises CliError: the file cannot be read, or a line is not a `kind`.
    """
    decoder = msgspec.json.Decoder(kind)
    for line, text in _raw_lines(path):
        try:
            yield line, decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise line.wrong(f"{error}") from error


def _gains(path: Path, documents: set[str], queries: dict[str, str]) -> dict[str, dict[str, int]]:
    gains: dict[str, dict[str, int]] = {}
    for line, raw in _raw_lines(path):
        cells = raw.decode("utf-8", "replace").rstrip("\r\n").split("\t")
        if line.number == 1 and cells[0] == _HEADER:
            continue
        if len(cells) != 3:
            raise line.wrong("three columns belong here, with a tab between: query-id, corpus-id, score")
        query, document, score = cells
        if query not in queries:
            raise line.wrong(f"no line of queries.jsonl has the query {query!r}")
        if document not in documents:
            raise line.wrong(f"no line of corpus.jsonl has the document {document!r}")
        judged = gains.setdefault(query, {})
        if document in judged:
            raise line.wrong(f"the document {document!r} has been judged for the query {query!r} already")
        try:
            judged[document] = int(score)
        except ValueError:
            raise line.wrong(f"the score is a whole number, not {score[:40]!r}") from None
    return gains


def _raw_lines(path: Path) -> Iterator[tuple[Line, bytes]]:
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(iter(partial(file.readline, _LINE_BYTES + 1), b""), start=1):
                line = Line(path, number)
                if len(raw) > _LINE_BYTES:
                    raise line.wrong(
                        f"longer than {_LINE_BYTES // 1024 // 1024} MiB; this is no file of lines"
                    )
                if raw.strip():
                    yield line, raw
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
