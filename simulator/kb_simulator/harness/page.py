"""The page at the control plane's root: state, journal and armed faults, live, with the levers beside them.

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
from kb_contracts.http.parsing import misfit
from kb_simulator.harness.control_models import AdvanceRequest, ClockRequest
from kb_simulator.harness.faults import Fault
from kb_simulator.harness.namespaces import DEFAULT, Namespace, Namespaces
from kb_simulator.harness.page_html import SCRIPT, STYLE, render, render_live

T = TypeVar("T")

Lever = Callable[[Namespace, dict[str, str]], str]
"""Does what a form asks and says what was done."""


def add_page(app: web.Application, namespaces: Namespaces, engine_url: str) -> None:
    """Serve the page at the root of `app`, and what its forms send."""
    app.router.add_get("/", _shown(namespaces, engine_url))
    app.router.add_get("/live", _live(namespaces))
    for name, lever in _LEVERS.items():
        app.router.add_post(f"/{name}", _pulled(namespaces, lever))


def _shown(namespaces: Namespaces, engine_url: str) -> Handler:
    async def shown(request: web.Request) -> web.Response:
        """The whole page."""
        namespace = _chosen(namespaces, request.query.get("namespace", ""))
        names = [each.name for each in namespaces]
        said = request.query.get("said", "")
        return _html(render(namespace, names, engine_url, said))

    return shown


def _live(namespaces: Namespaces) -> Handler:
    async def live(request: web.Request) -> web.Response:
        """The part that changes by itself."""
        return _html(render_live(_chosen(namespaces, request.query.get("namespace", ""))))

    return live


def _pulled(namespaces: Namespaces, lever: Lever) -> Handler:
    async def pulled(request: web.Request) -> web.Response:
        """Do what a form asks, and go back to the page."""
        fields = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
        namespace = _chosen(namespaces, fields.pop("namespace", ""))
        try:
            said = lever(namespace, {name: value.strip() for name, value in fields.items() if value.strip()})
        except EngineError as error:
            said = error.detail
        back = urlencode({"namespace": namespace.name, "said": said})
        return web.Response(status=303, headers={"Location": f"/?{back}"})

    return pulled


def _chosen(namespaces: Namespaces, name: str) -> Namespace:
    return next((each for each in namespaces if each.name == name), namespaces.get(DEFAULT))


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


# --- levers ---------------------------------------------------------------------------------------


def _arm(namespace: Namespace, fields: dict[str, str]) -> str:
    counts = {name: fields[name] for name in ("nth", "every", "times", "probability") if name in fields}
    match = {name: fields[name] for name in ("operation", "path", "tag", "body") if name in fields}
    fault = _read({"name": fields.get("name", ""), "match": match, "when": counts}, Fault)
    return f"Armed {namespace.faults.arm(fault).id}."


def _disarm(namespace: Namespace, fields: dict[str, str]) -> str:
    try:
        shown = namespace.faults.disarm(fields.get("id", ""))
    except KeyError:
        return "That fault is not armed any more."
    return f"Disarmed {shown.id}; it had fired {shown.fired} times."


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


_LEVERS: dict[str, Lever] = {
    "arm": _arm,
    "disarm": _disarm,
    "advance": _advance,
    "clock": _set_clock,
    "reset": _reset,
}
