"""The commands on the engine itself: `kb status`, `kb jobs` and `kb collections`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from kb_cli.config import engine
from kb_cli.documents import no_collection
from kb_cli.output import Output, UsageError, counted
from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.api import ragler as r

if TYPE_CHECKING:
    from kb_cli.client import EngineClient


def sandbox_line(sandbox: m.SandboxInfo) -> str:
    """Return the parts of the sandbox in force, and the reasons for missing ones."""
    missing = [f"not {part} ({reason})" for part, reason in sandbox.missing.items()]
    return f"{sandbox.setting}: {', '.join([*sandbox.holds, *missing]) or 'none'}"


def status(options: argparse.Namespace, out: Output) -> None:
    """Print version, model, counts, queue, storage, and issues."""
    with engine(options) as client:
        answer = client.call(ops.GET_STATUS)
    if out.answered(answer):
        return

    def mebibytes(count: int) -> str:
        return f"{count / 1_048_576:,.1f} MiB"

    settled = answer.queue.failed - answer.failures
    since = f", {counted(settled, 'failure')} settled" if settled else ""
    documents, queue, storage = answer.documents, answer.queue, answer.storage
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(documents.by_type.items()))
    if storage.is_withheld:
        lines = [("storage", "withheld: this key may not administer everything")]
    else:
        kept, most = mebibytes(storage.failed_bytes), mebibytes(storage.failed_bytes_limit)
        lines = [
            ("storage", f"{storage.path}, {mebibytes(storage.bytes)}, {mebibytes(storage.free_bytes)} free"),
            ("kept of failed", f"{kept} of {most}"),
            ("sandbox", "none" if answer.sandbox is UNSET else sandbox_line(answer.sandbox)),
        ]
    out.facts(
        [
            ("engine", answer.version),
            ("model", f"{answer.model.name}, {answer.model.dimensions} dimensions"),
            ("device", f"{answer.device.type}, {answer.device.threads} threads"),
            ("documents", f"{documents.total} ({kinds or 'none'}), {documents.empty} without text"),
            ("passages", answer.chunks),
            ("queue", f"{queue.queued} queued, {queue.running} running, {answer.failures} failed{since}"),
            *lines,
            ("last change", out.when(answer.last_updated) or "never"),
        ]
    )
    for issue in answer.issues:
        out.note(f"issue: {issue}")


def jobs(options: argparse.Namespace, out: Output) -> None:
    """Print the recent jobs, or one, which `--retry` queues again."""
    if options.retry and options.job is None:
        raise UsageError("--retry needs the ID of a job; `kb jobs --status failed` lists them")
    with engine(options) as client:
        if options.job is not None:
            found = [
                client.call(ops.RETRY_JOB if options.retry else ops.GET_JOB, path={"job_id": options.job})
            ]
            answer: m.Job | m.JobList = found[0]
        else:
            answer = client.call(
                ops.LIST_JOBS, query=ops.JobsQuery(status=options.status, limit=options.limit)
            )
            found = answer.jobs
    if out.answered(answer):
        return
    rows = []
    for job in found:
        step = f"{job.step} {job.progress:.0%}" if job.status == "running" else job.step
        if job.error is not None:
            step = f"{job.error.code}: {job.error.message}"
        when = out.when(job.created_at)
        rows.append([job.id, job.filename, job.status, step, job.title, job.document_id, when])
    out.table(["job", "file", "status", "step", "title", "document", "created"], rows)
    if isinstance(answer, m.JobList) and answer.total > len(found):
        out.note(f"{len(found)} of {counted(answer.total, 'job')}; --limit shows more")


def collections(options: argparse.Namespace, out: Output) -> None:
    """List all collections, show one by its name or id, or describe one."""
    members = {
        "description": options.describe,
        "created_by": options.created_by,
        "target_audience": options.audience,
        "usage_scenarios": options.scenario,
    }
    given = {name: value for name, value in members.items() if value is not None}
    key = options.collection
    if given and key is None:
        raise UsageError("name the collection to describe")
    with engine(options) as client:
        answer = client.call(ops.LIST_COLLECTIONS)
        named = [each for each in answer.collections if each.name == key]
        known = next(iter(named or [each for each in answer.collections if each.id == key]), None)
        if key is None:
            detail = None
        elif given:
            detail = _describe(client, key, known, given)
        elif known is None:
            raise no_collection(key, [each.name for each in answer.collections])
        else:
            detail = client.call(ops.GET_COLLECTION, path={"collection_id": known.id})
    if out.answered(answer if detail is None else detail):
        return
    if detail is None:
        rows = [
            [
                each.name,
                each.chunk_count,
                each.description,
                each.created_by,
                out.when(each.created_at),
                each.id,
            ]
            for each in answer.collections
        ]
        out.table(["collection", "passages", "description", "created by", "created", "id"], rows)
        return
    figures = detail.statistics
    out.facts(
        [
            ("collection", detail.name),
            ("id", detail.id),
            ("description", detail.description),
            ("audience", "; ".join(detail.target_audience or ())),
            ("scenarios", "; ".join(detail.usage_scenarios or ())),
            ("passages", detail.chunk_count),
            ("tokens", f"{figures.total_tokens}, {figures.avg_chunk_size:g} a passage"),
            ("created", f"{out.when(detail.created_at)} by {detail.created_by}"),
            ("last change", out.when(detail.updated_at)),
        ]
    )


def _describe(
    client: EngineClient, name: str, known: r.CollectionSummary | None, given: dict[str, str | list[str]]
) -> r.CollectionDetail:
    """Describe a collection; omitted members keep their values."""
    present: dict[str, object] = {}
    if known is not None:
        detail = client.call(ops.GET_COLLECTION, path={"collection_id": known.id})
        lists = {"target_audience": detail.target_audience, "usage_scenarios": detail.usage_scenarios}
        present = {member: value for member, value in lists.items() if value is not UNSET}
        present |= {"name": detail.name, "description": detail.description}
    try:
        wanted = msgspec.convert({"name": name, **present, **given}, r.CollectionRequest)
    except msgspec.ValidationError as error:
        raise UsageError(f"a description is invalid: {error}") from error
    return client.call(
        ops.PUT_COLLECTION, path={"collection_id": known.id if known else r.collection_id(name)}, body=wanted
    )
