"""`kb status` and `kb jobs`: how the engine is, and what it is at."""

from __future__ import annotations

import argparse

from kb_cli.connect import engine
from kb_cli.exits import CliError, Exit
from kb_cli.output import Output
from kb_contracts.api import models as m
from kb_contracts.api.operations import GET_JOB, GET_STATUS, LIST_JOBS, RETRY_JOB, JobsQuery


def status(options: argparse.Namespace, out: Output) -> None:
    """Version, model, counts, queue, storage, and what is wrong."""
    with engine(options) as client:
        answer = client.call(GET_STATUS)
    if out.answered(answer):
        return
    out.facts(_facts(answer))
    for issue in answer.issues:
        out.note(f"issue: {issue}")


def jobs(options: argparse.Namespace, out: Output) -> None:
    """The recent jobs, or one, which `--retry` queues again."""
    if options.retry and options.job is None:
        raise CliError(Exit.USAGE, "--retry needs the ID of a job; `kb jobs --status failed` lists them")
    with engine(options) as client:
        if options.job is not None:
            found = [client.call(RETRY_JOB if options.retry else GET_JOB, path={"job_id": options.job})]
            answer: m.Job | m.JobList = found[0]
        else:
            answer = client.call(LIST_JOBS, query=JobsQuery(status=options.status, limit=options.limit))
            found = answer.jobs
    if out.answered(answer):
        return
    rows = [[job.id, job.status, _state(job), job.title, job.document_id, job.created_at] for job in found]
    out.table(["job", "status", "step", "title", "document", "created"], rows)
    if isinstance(answer, m.JobList) and answer.total > len(found):
        out.note(f"{len(found)} of {answer.total} jobs; --limit shows more")


def _state(job: m.Job) -> str:
    if job.error is not None:
        return f"{job.error.code}: {job.error.message}"
    return f"{job.step} {job.progress:.0%}" if job.status == "running" else job.step


def _facts(answer: m.Status) -> list[tuple[str, object]]:
    documents, queue, storage = answer.documents, answer.queue, answer.storage
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(documents.by_type.items()))
    return [
        ("engine", answer.version),
        ("model", f"{answer.model.name}, {answer.model.dimensions} dimensions"),
        ("device", f"{answer.device.type}, {answer.device.threads} threads"),
        ("documents", f"{documents.total} ({kinds or 'none'}), {documents.empty} without text"),
        ("chunks", answer.chunks),
        ("queue", f"{queue.queued} queued, {queue.running} running, {queue.failed} failed"),
        ("storage", f"{storage.path}, {_mebibytes(storage.bytes)}, {_mebibytes(storage.free_bytes)} free"),
        ("kept of failed", f"{_mebibytes(storage.failed_bytes)} of {_mebibytes(storage.failed_bytes_limit)}"),
        ("last change", answer.last_updated or "never"),
    ]


def _mebibytes(count: int) -> str:
    return f"{count / 1_048_576:,.1f} MiB"
