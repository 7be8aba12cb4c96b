"""`kb addnote` and `kb updatenote`: short texts, remembered and revised."""

from __future__ import annotations

import argparse
import sys

from kb_cli.connect import engine
from kb_cli.exits import CliError, Exit
from kb_cli.labels import collection_and_tags, labels
from kb_cli.output import Output
from kb_contracts.api import models as m
from kb_contracts.api.operations import CREATE_JOB, GET_DOCUMENT, PATCH_NOTE, WITHOUT_CHUNKS, NoteQuery


def add(options: argparse.Namespace, out: Output) -> int:
    """Take in a note, and wait until it can be found."""
    tags = labels(options).submitted()
    note = m.NoteRequest(
        text=_text(options.text),
        title=options.title,
        tags=tags,
        source_path=options.source_path,
        # As the server does it: the same note twice is one within its collection, two across collections.
        dedup_scope=tags[0],
    )
    with engine(options) as client:
        job = client.call(CREATE_JOB, body=note)
        if not options.no_wait:
            job = client.wait_for_job(job.id)
    return _report(job, out)


def update(options: argparse.Namespace, out: Output) -> int:
    """Replace a note's text in place, and wait until it can be found."""
    patch = m.NotePatch(
        text=_text(options.text), title=options.title, expected_version=options.expected_version
    )
    with engine(options) as client:
        waiting = NoteQuery(wait=0) if options.no_wait else NoteQuery()
        changed = client.call(
            PATCH_NOTE, path={"document_id": options.document_id}, query=waiting, body=patch
        )
        if isinstance(changed, m.Job) and not options.no_wait:
            changed = client.wait_for_job(changed.id)
            if changed.status == "completed":
                changed = client.call(
                    GET_DOCUMENT, path={"document_id": options.document_id}, query=WITHOUT_CHUNKS
                )
    if isinstance(changed, m.Job):
        return _report(changed, out)
    if not out.answered(changed):
        out.text(f"Note {changed.id} is updated (version {changed.version}).", style="green")
    return Exit.OK


def _text(given: str) -> str:
    """The text of a note: as given, or all of stdin for `-`."""
    text = sys.stdin.read() if given == "-" else given
    if not text.strip():
        raise CliError(Exit.USAGE, "a note needs a text")
    if len(text) > m.MAX_NOTE_CHARS:
        raise CliError(
            Exit.USAGE,
            f"a note has at most {m.MAX_NOTE_CHARS} characters; take it in as a file with `kb add`",
        )
    return text


def _report(job: m.Job, out: Output) -> int:
    if out.answered(job):
        pass
    elif job.status == "completed":
        collection, _ = collection_and_tags(job.tags)
        same = "; the same text was there already" if job.deduplicated else ""
        out.text(f"Document {job.document_id} in {collection}{same}.", style="green")
    elif job.error is None:
        out.text(f"Job {job.id} is {job.status}.")
    if job.error is not None and not out.as_json:
        raise CliError(Exit.FAILED, f"job {job.id} failed: {job.error.message} ({job.error.code})")
    return Exit.FAILED if job.status in ("failed", "cancelled") else Exit.OK
