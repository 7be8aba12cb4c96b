"""`kb verify`: verify that an engine keeps the contract, promise by promise."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from kb_cli.config import client_settings, engine
from kb_cli.output import CliError, Exit, NotFound, Output, UsageError, counted
from kb_config.shared import addresses
from kb_contracts.api.operations import GET_STATUS, LIST_COLLECTIONS
from kb_verify import Promise, Results, Status, SuiteError, Target
from kb_verify import run as run_suite
from kb_verify.report import html, requirement_texts, requirements, verdict

_WHY_CHARS = 160
_STATES = {Status.PASSED: "kept", Status.FAILED: "BROKEN", Status.SKIPPED: "not shown"}


class Verdict(msgspec.Struct):
    """The output for programs."""

    passed: bool
    verdict: str
    requirements: dict[str, Status]
    promises: list[Promise]
    results: Results


def run(options: argparse.Namespace, out: Output) -> int:
    """Run the suite and print its results."""
    if options.target is not None:
        options.engine_url = options.target
    _check_base(options)
    folder = Path(options.report) if options.report is not None else None
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--report {folder}: {error.strerror}") from error
    settings = client_settings(options)
    target = Target(
        url=",".join(addresses(settings.engine_url)),
        api_key=settings.api_key,
        seed=options.seed,
        examples=options.examples,
        seconds=options.seconds,
        timeout=options.timeout,
    )
    junit = folder / "junit.xml" if folder is not None else None
    try:
        results = run_suite(target, quick=options.quick, junit=junit, show_progress=out.is_terminal)
    except SuiteError as error:
        raise CliError(str(error)) from error
    if folder is not None:
        (folder / "verification.html").write_text(html(results), "utf-8")
    _report(results, out)
    if folder is not None:
        out.note(f"the report is in {folder}: verification.html, junit.xml")
    if results.interrupted:
        return Exit.INTERRUPTED
    return Exit.OK if results.passed else Exit.FAILED


def _check_base(options: argparse.Namespace) -> None:
    """Refuse a base that is not empty, unless it may be erased."""
    # The suite exhausts the rate limits of callers without a name, and may just have been run.
    with engine(options, user=f"verify {uuid4()}") as client:
        status = client.call(GET_STATUS)
        collections = 0
        if not options.erase:
            with suppress(NotFound):  # an engine need not serve collections
                collections = len(client.call(LIST_COLLECTIONS).collections)
    waiting = status.queue.queued + status.queue.running
    if (status.documents.total or waiting or collections) and not options.erase:
        raise UsageError(
            f"the base holds {counted(status.documents.total, 'document')}, "
            f"{counted(collections, 'collection')} and {counted(waiting, 'unfinished job')}, and verifying "
            "removes all of them; verify an empty engine, or allow it with --erase"
        )


def _report(results: Results, out: Output) -> None:
    promises = results.promises()
    if out.answered(Verdict(results.passed, verdict(results), requirements(promises), promises, results)):
        return
    rows = []
    for each in promises:
        why = " ".join(each.why.split())
        why = why if len(why) <= _WHY_CHARS else why[: _WHY_CHARS - 1] + "…"
        ids = ", ".join(each.requirements)
        rows.append([each.family, each.sentence, ids, _STATES[each.status], why])
    out.table(["family", "promise", "requirements", "result", "why"], rows)
    texts = requirement_texts()
    for id_, status in requirements(promises).items():
        if status is Status.FAILED:
            out.note(f"broken: {id_} {texts.get(id_, '')}")
    out.note(verdict(results))
    out.note(results.counts())
