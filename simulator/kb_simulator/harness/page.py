"""The page at the control plane's root: state, journal and armed faults, live, with forms that change them.

It is HTML from the server; every form works without a script, and the script only fetches the live part
again. All that comes from outside is escaped, and nothing else may run: the policy names the one script and
the one style by their digests.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from kb_contracts.api.errors import EngineError
from kb_contracts.http.mount import misfit
from kb_simulator.harness.control_models import AdvanceRequest, ClockRequest
from kb_simulator.harness.faults import Fault
from kb_simulator.harness.namespaces import DEFAULT, Namespace, Namespaces
from kb_simulator.harness.page_html import SCRIPT, STYLE, render, render_live

T = TypeVar("T")

Action = Callable[[Namespace, dict[str, str]], str]
"""Does what a form asks; its result is the message for the person."""


def add_page(app: web.Application, namespaces: Namespaces, engine_url: str) -> None:
    """Serve the page at the root of `app`, and what its forms send."""

    def chosen(name: str) -> Namespace:
        return next((each for each in namespaces if each.name == name), namespaces.get(DEFAULT))

    async def page(request: web.Request) -> web.Response:
        namespace, message = chosen(request.query.get("namespace", "")), request.query.get("message", "")
        return _html(render(namespace, [each.name for each in namespaces], engine_url, message))

    async def live(request: web.Request) -> web.Response:
        return _html(render_live(chosen(request.query.get("namespace", ""))))

    def submit(action: Action) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            """Do what a form asks, and go back to the page."""
            fields = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
            namespace = chosen(fields.pop("namespace", ""))
            given = {name: value.strip() for name, value in fields.items() if value.strip()}
            try:
                message = action(namespace, given)
            except EngineError as error:
                message = error.detail
            back = urlencode({"namespace": namespace.name, "message": message})
            return web.Response(status=303, headers={"Location": f"/?{back}"})

        return handler

    app.router.add_get("/", page)
    app.router.add_get("/live", live)
    for name, action in _ACTIONS.items():
        app.router.add_post(f"/{name}", submit(action))


def _html(text: str) -> web.Response:
    return web.Response(
        text=text,
        content_type="text/html",
        headers={
            "Content-Security-Policy": _POLICY,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            # Under "no-referrer" a browser hides the origin of its own forms too, and they would be refused.
            "Referrer-Policy": "same-origin",
        },
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_POLICY = (
    f"default-src 'none'; style-src {_digest(STYLE)}; script-src {_digest(SCRIPT)}; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def _read(values: dict[str, object], kind: type[T]) -> T:
    """A model from a form's strings. Raises EngineError."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise misfit(error, kind) from error


# --- actions --------------------------------------------------------------------------------------


def _arm(namespace: Namespace, fields: dict[str, str]) -> str:
    counts = {name: fields[name] for name in ("nth", "every", "times", "probability") if name in fields}
    match = {name: fields[name] for name in ("operation", "path", "tag", "body") if name in fields}
    fault = _read({"name": fields.get("name", ""), "match": match, "when": counts}, Fault)
    return f"Armed {namespace.faults.arm(fault).id}."


def _disarm(namespace: Namespace, fields: dict[str, str]) -> str:
    try:
        disarmed = namespace.faults.disarm(fields.get("id", ""))
    except KeyError:
        return "That fault is not armed any more."
    return f"Disarmed {disarmed.id}; it had fired {disarmed.fired} times."


def _advance(namespace: Namespace, fields: dict[str, str]) -> str:
    seconds = _read({"seconds": fields.get("seconds", "")}, AdvanceRequest).seconds
    namespace.clock.advance(seconds)
    return f"Moved on by {seconds:g} seconds."


def _set_clock(namespace: Namespace, fields: dict[str, str]) -> str:
    namespace.clock.mode = _read({"mode": fields.get("mode", "")}, ClockRequest).mode
    return f"The clock is in mode {namespace.clock.mode}."


def _reset(namespace: Namespace, _fields: dict[str, str]) -> str:
    namespace.reset()
    return f"Began anew under seed {namespace.seed}."


_ACTIONS: dict[str, Action] = {
    "arm": _arm,
    "disarm": _disarm,
    "advance": _advance,
    "clock": _set_clock,
    "reset": _reset,
}
