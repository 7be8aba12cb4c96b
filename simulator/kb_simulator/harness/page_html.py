"""The page as HTML. Every value that is not one of this module's own constants is escaped by `_html`."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from kb_contracts.api import models as m
from kb_contracts.api.operations import BY_ID
from kb_simulator.harness.clock import ClockMode
from kb_simulator.harness.control_models import ClockInfo, clock_info, state_info
from kb_simulator.harness.fault_registry import ArmedFault
from kb_simulator.harness.faults import CATALOGUE
from kb_simulator.harness.journal import Record
from kb_simulator.harness.namespaces import Namespace

_DOCUMENTS = 6
_JOBS = 6
_ENTRIES = 30

STYLE = """
:root { color-scheme: light dark; --line: #d8dce3; --soft: #f4f6f9; --ink: #1c2430; --dim: #667085;
  --good: #1a7f4b; --warn: #a15c00; --bad: #b42318; --accent: #3056d3; --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --line: #2c3442; --soft: #1a202b; --ink: #e6e9ef;
  --dim: #98a2b3; --good: #4cc38a; --warn: #f1a10d; --bad: #f97066; --accent: #8ea6ff; --page: #12161e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 14px/1.45 system-ui, sans-serif; }
header { display: flex; flex-wrap: wrap; gap: .4rem 1.5rem; align-items: baseline; padding: .9rem 1.5rem;
  border-bottom: 1px solid var(--line); }
h1 { font-size: 1.15rem; margin: 0; }
h2 { font-size: .95rem; margin: 0 0 .5rem; }
header span, .dim { color: var(--dim); }
main { display: grid; grid-template-columns: minmax(15rem, 20rem) minmax(0, 1fr); gap: 1.5rem;
  padding: 1.25rem 1.5rem; }
@media (max-width: 60rem) { main { grid-template-columns: minmax(0, 1fr); } }
section { margin-bottom: 1.5rem; }
form { display: grid; gap: .45rem; }
form.line { display: flex; gap: .45rem; }
form + form { margin-top: .45rem; }
td form { display: block; }
label { display: grid; grid-template-columns: 6rem minmax(0, 1fr); align-items: center; gap: .5rem;
  color: var(--dim); }
input, select, button { font: inherit; color: inherit; background: var(--soft); border: 1px solid var(--line);
  border-radius: 6px; padding: .3rem .5rem; min-width: 0; }
button { cursor: pointer; background: var(--accent); border-color: var(--accent); color: var(--page); }
button.plain { background: none; color: inherit; border-color: var(--line); padding: .05rem .5rem; }
table { border-collapse: collapse; width: 100%; min-width: 44rem; }
th { text-align: left; font-weight: 500; color: var(--dim); white-space: nowrap; }
th, td { padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
.counts { display: flex; flex-wrap: wrap; gap: .75rem; }
.counts div { background: var(--soft); border: 1px solid var(--line); border-radius: 8px;
  padding: .5rem .9rem; min-width: 6.5rem; }
.counts b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.said { border-left: 3px solid var(--accent); padding-left: .6rem; }
code { font: 12.5px ui-monospace, monospace; }
"""

SCRIPT = """
const live = document.getElementById('live'), pulse = document.getElementById('pulse');
async function look() {
  try {
    const answer = await fetch('/live?namespace=' + encodeURIComponent(live.dataset.namespace));
    if (!answer.ok) throw new Error(answer.status);
    const html = await answer.text();
    if (!live.contains(document.activeElement)) live.innerHTML = html;
    pulse.textContent = 'live'; pulse.className = 'good';
  } catch (error) { pulse.textContent = 'not reachable'; pulse.className = 'bad'; }
  setTimeout(look, 1000);
}
look();
"""


class Html(str):
    """Text that is HTML already, and is not escaped again."""

    __slots__ = ()


def _html(template: str, **values: object) -> Html:
    """A template of this module with values in it: escaped, unless they are HTML."""
    safe = {name: value if isinstance(value, Html) else escape(str(value)) for name, value in values.items()}
    return Html(template.format(**safe))


def _joined(parts: Iterable[Html]) -> Html:
    return Html("".join(parts))


def render(namespace: Namespace, names: list[str], engine_url: str, said: str) -> Html:
    """The whole page; `said` is what the last lever did."""
    return _html(
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        "<title>kb simulator: {name}</title><style>{style}</style></head><body>"
        "<header><h1>kb simulator</h1><span>engine <code>{url}</code></span>"
        "<span>seed <code>{seed}</code></span>{choice}<span id=pulse>updated on reload</span></header>"
        "<main><div>{said}{levers}</div><div id=live data-namespace='{name}'>{live}</div></main>"
        "<script>{script}</script></body></html>",
        name=namespace.name,
        style=Html(STYLE),
        script=Html(SCRIPT),
        url=engine_url,
        seed=namespace.seed,
        choice=_choice(namespace.name, names),
        said=_html("<p class=said role=status>{said}</p>", said=said) if said else Html(),
        levers=_levers(namespace),
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


def _choice(chosen: str, names: list[str]) -> Html:
    return _html(
        "<form class=line action='/' method=get>"
        "<select name=namespace aria-label=namespace>{options}</select>"
        "<button class=plain>show</button></form>",
        options=_options(names, chosen),
    )


def _options(names: Iterable[str], chosen: str = "", first: str | None = None) -> Html:
    empty = [] if first is None else [_html("<option value=''>{first}</option>", first=first)]
    options = [
        _html(
            "<option value='{name}'{chosen}>{name}</option>",
            name=name,
            chosen=Html(" selected" if name == chosen else ""),
        )
        for name in names
    ]
    return _joined([*empty, *options])


def _levers(namespace: Namespace) -> Html:
    return _html(
        "<section><h2>Arm a fault</h2><form action='/arm' method=post>{hidden}"
        "<label>fault<select name=name>{faults}</select></label>"
        "<label>operation<select name=operation>{operations}</select></label>"
        "<label>tag<input name=tag placeholder='any'></label>"
        "<label>nth match<input name=nth inputmode=numeric placeholder='each'></label>"
        "<label>times<input name=times inputmode=numeric placeholder='no bound'></label>"
        "<label>probability<input name=probability inputmode=decimal placeholder='1'></label>"
        "<button>Arm</button></form></section>"
        "<section><h2>Clock</h2><form action='/advance' method=post class=line>{hidden}"
        "<input name=seconds value=10 inputmode=decimal aria-label=seconds size=6><span class=dim>s</span>"
        "<button>Advance</button>"
        "</form><form action='/clock' method=post class=line>{hidden}"
        "<select name=mode aria-label=mode>{modes}</select>"
        "<button class=plain>set mode</button></form></section>"
        "<section><h2>Namespace</h2><form action='/reset' method=post class=line>{hidden}"
        "<button class=plain>reset</button></form></section>",
        hidden=_hidden(namespace.name),
        faults=_options(CATALOGUE),
        operations=_options(BY_ID, first="any"),
        modes=_options([mode.value for mode in ClockMode], namespace.clock.mode.value),
    )


def _hidden(namespace: str) -> Html:
    return _html("<input type=hidden name=namespace value='{name}'>", name=namespace)


def _counts(namespace: Namespace) -> Html:
    status = namespace.state.status()
    waiting = status.queue.queued + status.queue.running
    clock = clock_info(namespace)
    counts: list[tuple[object, str]] = [
        (status.documents.total, "documents"),
        (status.chunks, "chunks"),
        (waiting, "jobs running"),
        (status.queue.failed, "jobs failed"),
        (len(namespace.journal) + namespace.journal.dropped, "requests"),
        (f"{clock.elapsed:.3f} s", f"{_shown_time(clock)}, {clock.mode}"),
    ]
    cells = [
        _html("<div><b>{value}</b><span class=dim>{what}</span></div>", value=value, what=what)
        for value, what in counts
    ]
    return _html("<section class=counts>{cells}</section>", cells=_joined(cells))


def _shown_time(clock: ClockInfo) -> str:
    sleeping = f", {clock.sleeping} asleep" if clock.sleeping else ""
    return f"{clock.now[:19]}Z{sleeping}"


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
        rows=_joined(_row(cells) for cells in rows),
    )


def _row(cells: list[object]) -> Html:
    return _html("<tr>{cells}</tr>", cells=_joined(_html("<td>{cell}</td>", cell=cell) for cell in cells))
