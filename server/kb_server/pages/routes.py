"""The routes of the pages, and their checks: a session, and a form token for every change."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.resources import files
from typing import Any, get_args
from urllib.parse import urlencode

from aiohttp import hdrs, web
from jinja2 import Environment, PackageLoader, StrictUndefined

from kb_contracts.access.reach import Right
from kb_contracts.api import models as m
from kb_contracts.api.operations import CANCEL_JOB, RETRY_JOB
from kb_contracts.semantics.documents import fidelity_in_words
from kb_server.access.grants import EVERYBODY
from kb_server.engine_client.errors import EngineBusy, EngineFault, Refused
from kb_server.engine_faults import tool_error
from kb_server.hosting.calls import new_call, on_behalf_of
from kb_server.pages import document_pages, jobs, several, versions
from kb_server.pages.forms import Form, FormError
from kb_server.pages.sessions import COOKIE, PAGES, SESSION_SECONDS, Sessions
from kb_server.pages.visit import HEADERS, Refusal, Visit, collection_of, go, tags_of
from kb_server.services import SERVER_VERSION, Services, http_base
from kb_server.tool import ToolError
from mcp_aiohttp.guard import GATE, route_of
from mcp_aiohttp.protocol import jsonrpc
from mcp_aiohttp.protocol.caller import Caller, Identity

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.Response]]
Page = Callable[[Visit], Awaitable[web.Response]]

_OWN_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]*")
_DOCUMENT = "/documents/{document_id:[0-9a-f-]{1,36}}"
_VERSION = f"{_DOCUMENT}/versions/{{version:[0-9]{{1,15}}}}"
_JOB = "/jobs/{job_id:[0-9a-f-]{36}}"

_NO_KEY = "Tokens open no pages, and this server has no key. Make one: kb keys create NAME."
_FILES = {"kb.css": "text/css", "kb.js": "text/javascript", "kb.svg": "image/svg+xml"}
_FAULTS = {
    "forbidden": 403,
    "document_not_found": 404,
    "version_not_found": 404,
    "original_not_kept": 404,
    "job_not_found": 404,
    "version_conflict": 409,
    "job_finished": 409,
}


@cache
def _templates() -> Environment:
    """The templates, each compiled once in a process."""
    templates = Environment(
        loader=PackageLoader("kb_server.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals |= {
        "collection_of": collection_of,
        "fidelity_in_words": fidelity_in_words,
        "tags_of": tags_of,
        "types": get_args(m.DocType),
        "version": SERVER_VERSION,
    }
    return templates


class Pages:
    """The pages over `services`, behind its keys."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self._services = services
        self.sessions = Sessions(
            services.keys, services.meter, has_issuer=services.tokens is not None, secret=services.instance
        )
        self._is_secure = http_base(settings).lower().startswith("https:")

    async def root(self, request: web.Request) -> web.Response | None:
        """Return the first page, or the one for an unknown path; None if the client does not accept HTML."""
        if "text/html" not in request.headers.get(hdrs.ACCEPT, ""):
            return None
        if request.path != "/":
            return self.render("absent", 404)
        return await self._guarded(document_pages.search)(request)

    def routes(self) -> Sequence[web.RouteDef]:
        """Return all routes but the first page."""
        read: dict[str, Page] = {
            "/documents": document_pages.listing,
            "/documents/selected": several.confirmation,
            _DOCUMENT: document_pages.document,
            f"{_DOCUMENT}/note": document_pages.note,
            f"{_DOCUMENT}/original": document_pages.original,
            f"{_DOCUMENT}/picture": document_pages.picture,
            f"{_DOCUMENT}/remove": document_pages.removal,
            f"{_DOCUMENT}/versions": versions.listing,
            _VERSION: versions.version,
            "/trash": versions.trash,
            "/add": jobs.addition,
            "/collections": document_pages.collections,
            "/jobs": jobs.listing,
            "/state": jobs.state,
        }
        forms: dict[str, Right] = {
            "/add": "write",
            f"{_DOCUMENT}/note": "write",
            f"{_DOCUMENT}/remove": "delete",
        }
        # With the page that shows a refused form again.
        change: dict[str, tuple[Page, Page | None]] = {
            f"{_DOCUMENT}/note": (document_pages.save_note, document_pages.note),
            f"{_DOCUMENT}/tags": (document_pages.save_tags, document_pages.document),
            f"{_VERSION}/restore": (versions.restore, None),
            "/add": (jobs.add, jobs.addition),
            f"{_JOB}/cancel": (partial(jobs.change, CANCEL_JOB, "cancelled"), None),
            f"{_JOB}/retry": (partial(jobs.change, RETRY_JOB, "queued"), None),
        }
        return [
            *(web.get(path, self._guarded(page, forms.get(path, "read"))) for path, page in read.items()),
            *(web.post(path, self._guarded(page, "write", again)) for path, (page, again) in change.items()),
            web.post("/documents/selected", self._guarded(several.change)),
            web.post("/documents/undo", self._guarded(several.undo, "write")),
            web.post(f"{_DOCUMENT}/remove", self._guarded(document_pages.remove, "delete")),
            web.post("/logout", self._guarded(self._logout, None)),
            web.get("/login", self._login_page),
            web.post("/login", self._login),
            *(web.get(f"/pages/{name}", _file(name, kind)) for name, kind in _FILES.items()),
        ]

    def render(self, template: str, status: int, **values: Any) -> web.Response:
        text = _templates().get_template(f"{template}.html").render(values)
        headers = {**HEADERS, hdrs.CACHE_CONTROL: "no-store"}
        return web.Response(text=text, status=status, content_type="text/html", headers=headers)

    def _render_for(self, session: str, template: str, status: int, **values: Any) -> web.Response:
        token = self.sessions.form_token(session)
        return self.render(template, status, token=token, needs_login=self.sessions.needs_login, **values)

    # --- who may see them --------------------------------------------------------------------------

    def _guarded(self, page: Page, right: Right | None = "read", again: Page | None = None) -> Handler:
        async def serve(request: web.Request) -> web.Response:
            session = request.cookies.get(COOKIE, "")
            grant = self.sessions.grant(session)
            known = grant is not None
            if not known and self.sessions.needs_login:
                there = f"?{urlencode({'to': request.path_qs})}" if request.method != hdrs.METH_POST else ""
                return go(f"/login{there}")
            if not known:
                session = self.sessions.begin()
            with Form() as form:
                visit = Visit(
                    request, grant or EVERYBODY, form, self._services, partial(self._render_for, session)
                )
                response = await self._answer(page, visit, right, again)
            if not known:
                self._give(response, session)
            fields = {"route": route_of(request), "status": response.status, "caller": visit.grant.name}
            log.info("Served a page", extra=fields)
            return response

        return serve

    async def _answer(
        self, page: Page, visit: Visit, right: Right | None, again: Page | None
    ) -> web.Response:
        request, form, grant = visit.request, visit.form, visit.grant
        caller = Caller(
            "pages", request.headers, request.app[GATE].address_of(request), Identity(grant.name, grant)
        )
        settings = self._services.settings
        try:
            if request.method == hdrs.METH_POST:
                await form.read(
                    request, settings.home / "staging", settings.max_upload_bytes, self._check_token
                )
            if right is not None and right not in grant.access.rights:
                raise FormError(grant.refusal(right, PAGES), 403)
            with on_behalf_of(new_call(None, caller)):
                return await page(visit)
        except (EngineFault, ToolError) as error:
            refused = _refusal(error)
        if again is not None and form.is_own:
            visit.refused = refused
            with suppress(EngineFault, ToolError), on_behalf_of(new_call(None, caller)):
                return await again(visit)
            visit.refused = None
        return visit.show("failed", status=refused.status, message=refused.message)

    def _check_token(self, request: web.Request, form: Form) -> None:
        if not self.sessions.is_form_token(request.cookies.get(COOKIE, ""), form["token"]):
            raise FormError("The form is of another session. Go back, load the page again, and repeat.", 403)
        form.is_own = True

    def _give(self, response: web.Response, session: str) -> None:
        response.set_cookie(
            COOKIE, session, max_age=SESSION_SECONDS, httponly=True, samesite="Strict", secure=self._is_secure
        )

    async def _login_page(self, request: web.Request) -> web.Response:
        if not self.sessions.needs_login:
            return go("/")
        message = "" if self.sessions.can_login else _NO_KEY
        return self.render("login", 200, message=message, to=_own(request.query.get("to", "")))

    async def _login(self, request: web.Request) -> web.Response:
        with Form() as form:
            try:
                await form.read(request)
            except FormError as error:
                return self.render("login", error.status, message=error.message, to="/")
            to = _own(form["to"])
            gate, key = request.app[GATE], form["key"].strip()
            address = gate.address_of(request)
            try:
                gate.tokens.wrong.check(address, key)
            except jsonrpc.Refusal as refusal:
                gate.report_refusal(request, str(refusal.data["error_type"]), refusal.status)
                response = self.render("login", refusal.status, message=refusal.message, to=to)
                response.headers.update(refusal.headers)
                return response
            session = self.sessions.login(key)
            if session is None:
                reason = self.sessions.why_not(key)
                if not reason:
                    gate.tokens.wrong.count(address)
                gate.report_refusal(request, "wrong_login", 403)
                message = reason or "That is not the key of this server."
                return self.render("login", 403, message=message, to=to)
        gate.tokens.wrong.accept(address, key)
        response = go(to)
        self._give(response, session)
        return response

    async def _logout(self, _visit: Visit) -> web.Response:
        response = go("/login")
        response.del_cookie(COOKIE)
        return response


def _refusal(error: EngineFault | ToolError) -> Refusal:
    if isinstance(error, EngineFault):
        status = _FAULTS.get(error.reason, 422) if isinstance(error, Refused) else 502
        if isinstance(error, EngineBusy):
            status = 503
        return Refusal(status, tool_error(error).message, "")
    return Refusal(getattr(error, "status", 422), error.message, str(error.details.get("parameter", "")))


def _file(name: str, kind: str) -> Handler:
    body = files(__package__).joinpath(name).read_bytes()

    async def serve(_request: web.Request) -> web.Response:
        headers = {**HEADERS, hdrs.CACHE_CONTROL: "max-age=300"}
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    return serve


def _own(path: str) -> str:
    """Return a path of this server, or the first page: a login must not redirect to another site."""
    return path if _OWN_PATH.fullmatch(path) else "/"
