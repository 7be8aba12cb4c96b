"""The page at the control plane's root: state, journal and armed faults, live, with forms that change them.

The server renders the HTML. Every form works without a script; the script only refreshes the live part. A
form is sent to the endpoint of the control plane in its action; its fields are path parameters or members of
the body. All external input is escaped, and the content security policy names the single script and the
single style by their digests, so that nothing further can run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import BY_ID, DocumentsQuery
from kb_http.decoding import misfit
from kb_simulator.determinism import ClockMode, rfc3339
from kb_simulator.harness.control import ENDPOINTS, Call, Endpoint
from kb_simulator.harness.faults import CATALOGUE
from kb_simulator.harness.journal import Record
from kb_simulator.harness.namespaces import DEFAULT, Namespace, Namespaces

_NEWEST = 6  # number of documents, and of jobs
_ENTRIES = 30

_PAGE, STYLE, SCRIPT = (
    files(__package__).joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js")
)


def add_page(app: web.Application, namespaces: Namespaces, engine_url: str) -> None:
    """Serve the page at the root of `app`, and the targets of its forms."""

    def chosen(name: str) -> Namespace:
        return next((each for each in namespaces if each.name == name), namespaces.get(DEFAULT))

    async def page(request: web.Request) -> web.Response:
        namespace, message = chosen(request.query.get("namespace", "")), request.query.get("message", "")
        return _response(render(namespace, [each.name for each in namespaces], engine_url, message))

    async def live(request: web.Request) -> web.Response:
        return _response(render_live(chosen(request.query.get("namespace", ""))))

    def submit(endpoint: Endpoint) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            """Perform the action of a form and redirect to the page."""
            fields = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
            namespace = chosen(fields.pop("namespace", ""))
            try:
                path = {name: fields.pop(name, "") for name in endpoint.operation.path_parameters}
                body = _body(fields, endpoint.operation.body)
                answer = endpoint.act(Call(namespaces, engine_url, namespace, path, body))
                message = endpoint.message.format_map(msgspec.structs.asdict(answer))
            except EngineError as error:
                message = error.detail
            back = urlencode({"namespace": namespace.name, "message": message})
            return web.Response(status=303, headers={"Location": f"/?{back}"})

        return handler

    app.router.add_get("/", page)
    app.router.add_get("/live", live)
    for endpoint in ENDPOINTS.values():
        if endpoint.message:
            app.router.add_post(f"/{endpoint.operation.id}", submit(endpoint))


def _body(fields: dict[str, str], kind: type[msgspec.Struct] | None) -> msgspec.Struct | None:
    """Return the body from a form's fields: `when.nth` is a nested member, empty fields are omitted.

    Raises:
        EngineError: the values are invalid.
    """
    if kind is None:
        return None
    values: dict[str, Any] = {}
    for name, value in fields.items():
        outer, _, inner = name.rpartition(".")
        if value.strip():
            (values.setdefault(outer, {}) if outer else values)[inner] = value.strip()
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise misfit(error, kind) from error


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_POLICY = (
    f"default-src 'none'; style-src {_digest(STYLE)}; script-src {_digest(SCRIPT)}; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def _response(text: str) -> web.Response:
    return web.Response(
        text=text,
        content_type="text/html",
        headers={
            "Content-Security-Policy": _POLICY,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            # Under "no-referrer" a browser hides the origin of the page's own forms too, and they would be
            # refused.
            "Referrer-Policy": "same-origin",
        },
    )


# --- the HTML -------------------------------------------------------------------------------------


class Html(str):
    """HTML text, which is not escaped again."""

    __slots__ = ()


def _html(template: str, **values: object) -> Html:
    """Return the template with the values inserted; values are escaped unless they are `Html`."""
    safe = {name: value if isinstance(value, Html) else escape(str(value)) for name, value in values.items()}
    return Html(template.format(**safe))


def _joined(parts: Iterable[Html]) -> Html:
    return Html("".join(parts))


def _options(names: Iterable[str], chosen: str = "") -> Html:
    template = "<option value='{name}'{chosen}>{name}</option>"
    selected = {True: Html(" selected"), False: Html()}
    return _joined(_html(template, name=name, chosen=selected[name == chosen]) for name in names)


def _hidden(namespace: str) -> Html:
    return _html("<input type=hidden name=namespace value='{name}'>", name=namespace)


def render(namespace: Namespace, names: list[str], engine_url: str, message: str) -> Html:
    """The whole page; `message` is the result of the last form."""
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
    """The part of the page that refreshes itself."""
    records, requests = namespace.journal.latest(_ENTRIES), len(namespace.journal) + namespace.journal.dropped
    state, clock = namespace.state, namespace.clock
    status, now = state.status(), rfc3339(clock.microseconds())
    asleep = f", {clock.sleeping} asleep" if clock.sleeping else ""
    counts: list[tuple[object, str]] = [
        (status.documents.total, "documents"),
        (status.chunks, "chunks"),
        (status.queue.queued + status.queue.running, "jobs running"),
        (status.queue.failed, "jobs failed"),
        (requests, "requests"),
        (f"{clock.elapsed():.3f} s", f"{now[:19]}Z{asleep}, {clock.mode}"),
    ]
    figure = "<div><b>{value}</b><span class=dim>{what}</span></div>"
    figures = _joined(_html(figure, value=value, what=what) for value, what in counts)
    disarm = (
        "<form action='/disarm' method=post>{hidden}<input type=hidden name=fault_id value='{id}'>"
        "<button class=plain>disarm</button></form>"
    )
    faults = [
        [
            _html("<code>{id}</code>", id=each.id),
            each.fault.match,
            each.fault.when,
            each.matched,
            each.fired,
            _html(disarm, hidden=_hidden(namespace.name), id=each.id),
        ]
        for each in namespace.faults.list()
    ]
    entries = [
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
    documents: list[list[object]] = [
        [each.id, each.title, each.doc_type, ", ".join(each.tags), each.chunk_count, each.version]
        for each in state.documents.page(DocumentsQuery(limit=_NEWEST, sort_by="id")).documents
    ]
    jobs: list[list[object]] = [
        [
            _html("<code>{id}</code>", id=each.id[:8]),
            each.title,
            each.status,
            each.step,
            f"{each.progress:.0%}",
            each.error.code if each.error else "",
        ]
        for each in state.job_page(None, _NEWEST, 0).jobs
    ]
    newest = f"Journal, the newest {len(records)} of {requests}"
    return _joined(
        [
            _html("<section class=counts>{figures}</section>", figures=figures),
            _table("Armed faults", ["fault", "requests", "when", "matched", "fired", ""], faults),
            _table(newest, ["#", "at (s)", "operation", "request", "answer", "faults", "delay"], entries),
            _table("Documents, the newest", ["id", "title", "type", "tags", "chunks", "version"], documents),
            _table("Jobs, the newest", ["id", "title", "status", "step", "progress", "error"], jobs),
        ]
    )


def _status(record: Record) -> Html:
    if record.status is None:
        return _html("<span class=bad>{what}</span>", what="cut off" if record.faults else "none yet")
    kind = "good" if record.status < 400 and not record.faults else "warn" if record.status < 500 else "bad"
    template = "<span class={kind}>{status} {code}</span>"
    return _html(template, kind=kind, status=record.status, code=record.code or "")


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
