"""The results of a verification as one HTML page: no script, no external resources, all text escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from string import Template

from kb_verify.requirements import load
from kb_verify.results import Promise, Results, Status

_PAGE = Template("""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Verification of $url</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
  body { color: #1c2024; background: #fff; }
  table { border-collapse: collapse; width: 100%; margin: 1rem 0 2rem; }
  th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid #d8dce0; }
  .passed { color: #17663a; } .failed { color: #a3141e; font-weight: 600; } .skipped { color: #7a5a00; }
  pre { background: #f4f5f7; padding: .8rem; overflow-x: auto; white-space: pre-wrap; }
  @media (prefers-color-scheme: dark) {
    body { color: #e6e8ea; background: #15181b; } pre { background: #20252a; }
    .passed { color: #6fd39a; } .failed { color: #ff8d8d; } .skipped { color: #e5c063; }
  }
</style>
<h1>Verification of $url</h1>
<p class="$status">$verdict</p>
<p>$counts</p>
<h2>Requirements</h2>
$requirements
<h2>Promises</h2>
$promises
<h2>Operations and links</h2>
$operations
$links
$failures
</html>
""")


def html(results: Results) -> str:
    promises = results.promises()
    texts = requirement_texts()
    by_requirement = [[id_, texts.get(id_, ""), status] for id_, status in requirements(promises).items()]
    by_promise = [
        [
            each.family,
            f"{each.sentence}. {each.promise}".strip(),
            ", ".join(each.requirements),
            each.status,
            each.why,
        ]
        for each in promises
    ]
    sections = "".join(
        f"<h3>{escape(each.id)}</h3>\n<pre>{escape(each.details)}</pre>\n"
        for each in results.of(Status.FAILED)
    )
    return _PAGE.substitute(
        url=escape(results.url),
        status=Status.PASSED if results.passed else Status.FAILED,
        verdict=escape(verdict(results)),
        counts=escape(results.counts()),
        requirements=_table(["Requirement", "", "Result"], by_requirement),
        promises=_table(["Family", "Promise", "Requirements", "Result", "Why"], by_promise),
        operations=_table(
            ["Operation", "Asked", "Succeeded"],
            ([each.operation, str(each.requests), str(each.succeeded)] for each in results.operations),
        ),
        links=_table(
            ["From", "To", "Taken"], ([each.source, each.target, str(each.taken)] for each in results.links)
        ),
        failures=f"<h2>What failed</h2>\n{sections}" if sections else "",
    )


def verdict(results: Results) -> str:
    """Return one line: the numbers of promises kept, broken and not shown, and whether it was interrupted."""
    states = [promise.status for promise in results.promises()]
    kept, broken, unshown = (states.count(each) for each in (Status.PASSED, Status.FAILED, Status.SKIPPED))
    rest = "; interrupted, the others were not looked at" if results.interrupted else ""
    return f"{kept} promises kept, {broken} broken, {unshown} not shown{rest}"


_SEVERITY = [Status.PASSED, Status.SKIPPED, Status.FAILED]


def requirements(promises: Iterable[Promise]) -> dict[str, Status]:
    """Return the requirements of the promises, each with its worst outcome, by id."""
    worst: dict[str, Status] = {}
    for promise in promises:
        for id_ in promise.requirements:
            worst[id_] = max(promise.status, worst.get(id_, promise.status), key=_SEVERITY.index)
    return dict(sorted(worst.items(), key=lambda item: (item[0][0], int(item[0][1:]))))


def requirement_texts() -> dict[str, str]:
    return {entry.id: entry.text for entry in load().requirements}


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    columns = "".join(f"<th>{escape(column)}</th>" for column in head)
    body = ""
    for row in rows:
        marks = [f' class="{text}"' if text in set(Status) else "" for text in row]
        cells = [f"<td{mark}>{escape(text)}</td>" for mark, text in zip(marks, row, strict=True)]
        body += f"<tr>{''.join(cells)}</tr>\n"
    return f"<table>\n<tr>{columns}</tr>\n{body}</table>"
