"""`kb search`: passages that answer, best first."""

from __future__ import annotations

import argparse

import msgspec

from kb_cli.connect import engine
from kb_cli.exits import CliError, Exit
from kb_cli.labels import collection_and_tags, labels
from kb_cli.output import Output
from kb_contracts.api import models as m
from kb_contracts.api.operations import SEARCH

_SHORT_CHARS = 400


def run(options: argparse.Namespace, out: Output) -> None:
    """Search and show."""
    request = _request(options)
    with engine(options) as client:
        answer = client.call(SEARCH, body=request)
    if not out.answered(answer):
        _show(answer, out, full=options.full)


def _request(options: argparse.Namespace) -> m.SearchRequest:
    if not options.query:
        raise CliError(Exit.USAGE, "a search needs words or a question")
    if options.fts_only and options.mode not in (None, "fts"):
        raise CliError(Exit.USAGE, f"--fts-only and --mode {options.mode} exclude each other")
    request = m.SearchRequest(
        query=options.query,
        top=options.top,
        tags=labels(options).searched(),
        doc_type=options.doc_type,
        mode=options.mode,
        fts_only=True if options.fts_only else None,
        min_score=options.min_score,
        explain=options.explain,
    )
    try:
        return msgspec.convert(msgspec.to_builtins(request), m.SearchRequest)
    except msgspec.ValidationError as error:
        raise CliError(Exit.USAGE, str(error)) from error


def _show(answer: m.SearchResponse, out: Output, *, full: bool) -> None:
    if answer.results and answer.weak:
        out.text("weak: nothing matches well, these are only the nearest\n", style="yellow")
    for place, result in enumerate(answer.results, 1):
        out.text(f"{place}. {_heading(result)}", style="bold")
        if result.explain is not None:
            out.text(f"   {_explained(result.explain)}", style="dim")
        out.text(_indented(result.chunk.text, full=full) + "\n")
    if not answer.results:
        out.note("Nothing found.")


def _heading(result: m.SearchResult) -> str:
    collection, tags = collection_and_tags(result.tags)
    chunk, document = result.chunk, result.document
    parts = [
        f"{result.score:.2f}",
        document.title,
        chunk.heading,
        f"page {chunk.page}" if chunk.page else None,
        f"document {document.id}",
        f"in {collection}" if collection else None,
        tags,
    ]
    return " · ".join(part for part in parts if part)


def _explained(explain: m.Explanation) -> str:
    meaning = "no say" if explain.cosine is None else f"{explain.cosine:.3f}"
    words = "no say" if explain.bm25 is None else f"{explain.bm25:.3f}"
    return f"meaning {meaning} × {explain.weight:g}, words {words} (saturation {explain.saturation:g})"


def _indented(text: str, *, full: bool) -> str:
    if not full and len(text) > _SHORT_CHARS:
        text = text[:_SHORT_CHARS].rstrip() + " … (--full shows all)"
    return "\n".join(f"   {line}" for line in text.strip().splitlines() if full or line.strip())
