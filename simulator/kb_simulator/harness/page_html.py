"""The page as HTML. Every value that is put into a template is escaped by `_html`, unless it is `Html`."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from kb_contracts.api import models as m
from kb_contracts.api.operations import BY_ID
from kb_simulator.harness.clock import ClockMode
from kb_simulator.harness.control_models import clock_info, state_info
from kb_simulator.harness.fault_registry import ArmedFault
from kb_simulator.harness.faults import CATALOGUE
from kb_simulator.harness.journal import Record
from kb_simulator.harness.namespaces import Namespace

_DOCUMENTS = 6
_JOBS = 6
_ENTRIES = 30

_PAGE, STYLE, SCRIPT = (
    files(__package__).joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js")
)


class Html(str):
    """Text that is HTML already, and is not escaped again."""

    __slots__ = ()


def _html(template: str, **values: object) -> Html:
    """The template with values in it: escaped, unless they are HTML."""
    safe = {name: value if isinstance(value, Html) else escape(str(value)) for name, value in values.items()}
    return Html(template.format(**safe))


def _joined(parts: Iterable[Html]) -> Html:
    return Html("".join(parts))


def render(namespace: Namespace, names: list[str], engine_url: str, message: str) -> Html:
    """The whole page; `message` is what the last form did."""
    return _html(
        _PAGE,
        name=namespace.name,
        style=Html(STYLE),
        script=Html(SCRIPT),
        url=engine_url,
        seed=namespace.seed,
        namespaces=_options(names, namespace.name),
        message=_html("<p class=message role=status>{message}</p>", message=message) if message else Html(),
        hidden=_hidden(namespace.name),
        faults=_options(CATALOGUE),
        operations=_options(BY_ID),
        modes=_options(ClockMode, namespace.clock.mode),
        live=render_live(namespace),
    )


def render_live(namespace: Namespace) -> Html:
    """The part of the page that changes by itself."""
    journal = namespace.journal
    return _joined(
        [
            _counts(namespace),
            _faults(namespace.name, namespace.faults.list()),
            _journal(journal.latest(_ENTRIES), len(journal) + journal.dropped),
            _documents(state_info(namespace, _DOCUMENTS).documents),
            _jobs(state_info(namespace, _JOBS).jobs),
        ]
    )


def _options(names: Iterable[str], chosen: str = "") -> Html:
    return _joined(
        _html(
            "<option value='{name}'{chosen}>{name}</option>",
            name=name,
            chosen=Html(" selected" if name == chosen else ""),
        )
        for name in names
    )


def _hidden(namespace: str) -> Html:
    return _html("<input type=hidden name=namespace value='{name}'>", name=namespace)


def _counts(namespace: Namespace) -> Html:
    status = namespace.state.status()
    waiting = status.queue.queued + status.queue.running
    clock = clock_info(namespace)
    asleep = f", {clock.sleeping} asleep" if clock.sleeping else ""
    counts: list[tuple[object, str]] = [
        (status.documents.total, "documents"),
        (status.chunks, "chunks"),
        (waiting, "jobs running"),
        (status.queue.failed, "jobs failed"),
        (len(namespace.journal) + namespace.journal.dropped, "requests"),
        (f"{clock.elapsed:.3f} s", f"{clock.now[:19]}Z{asleep}, {clock.mode}"),
    ]
    template = "<div><b>{value}</b><span class=dim>{what}</span></div>"
    figures = _joined(_html(template, value=value, what=what) for value, what in counts)
    return _html("<section class=counts>{figures}</section>", figures=figures)


def _faults(namespace: str, armed: list[ArmedFault]) -> Html:
    rows = [
        [
            _html("<code>{id}</code>", id=each.id),
            each.fault.match,
            each.fault.when,
            each.matched,
            each.fired,
            _html(
                "<form action='/disarm' method=post>{hidden}<input type=hidden name=id value='{id}'>"
                "<button class=plain>disarm</button></form>",
                hidden=_hidden(namespace),
                id=each.id,
            ),
        ]
        for each in armed
    ]
    return _table("Armed faults", ["fault", "requests", "when", "matched", "fired", ""], rows)


def _journal(records: list[Record], total: int) -> Html:
    rows = [
        [
            record.number,
            f"{record.at:.3f}",
            record.operation or "none",
            _html("<code>{method} {target}</code>", method=record.method, target=record.target[:200]),
            _status(record),
            ", ".join(record.faults),
            f"{record.delay:.3f} s" if record.delay else "",
        ]
        for record in reversed(records)
    ]
    title = f"Journal, the newest {len(records)} of {total}"
    return _table(title, ["#", "at (s)", "operation", "request", "answer", "faults", "delay"], rows)


def _status(record: Record) -> Html:
    if record.status is None:
        return _html("<span class=bad>{what}</span>", what="cut off" if record.faults else "none yet")
    kind = "good" if record.status < 400 and not record.faults else "warn" if record.status < 500 else "bad"
    return _html(
        "<span class={kind}>{status} {code}</span>",
        kind=kind,
        status=record.status,
        code=record.code or "",
    )


def _documents(documents: list[m.Document]) -> Html:
    rows: list[list[object]] = [
        [each.id, each.title, each.doc_type, ", ".join(each.tags), each.chunk_count, each.version]
        for each in documents
    ]
    return _table("Documents, the newest", ["id", "title", "type", "tags", "chunks", "version"], rows)


def _jobs(jobs: list[m.Job]) -> Html:
    rows: list[list[object]] = [
        [
            _html("<code>{id}</code>", id=each.id[:8]),
            each.title,
            each.status,
            each.step,
            f"{each.progress:.0%}",
            each.error.code if each.error else "",
        ]
        for each in jobs
    ]
    return _table("Jobs, the newest", ["id", "title", "status", "step", "progress", "error"], rows)


def _table(title: str, heads: list[str], rows: list[list[object]]) -> Html:
    if not rows:
        return _html("<section><h2>{title}</h2><p class=dim>None.</p></section>", title=title)
    return _html(
        "<section><h2>{title}</h2><div class=scroll><table><thead><tr>{heads}</tr></thead>"
        "<tbody>{rows}</tbody></table></div></section>",
        title=title,
        heads=_joined(_html("<th>{head}</th>", head=head) for head in heads),
        rows=_joined(
            _html("<tr>{row}</tr>", row=_joined(_html("<td>{value}</td>", value=value) for value in row))
            for row in rows
        ),
    )
