"""The routes of the pages, and what stands before each: a session, and for what changes something a token."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar, get_args
from urllib.parse import urlencode

import msgspec
from aiohttp import hdrs, web
from jinja2 import Environment, PackageLoader, StrictUndefined

from kb_contracts.access.reach import Right
from kb_contracts.api import models as m
from kb_contracts.api.formats import FORMATS
from kb_contracts.api.operations import (
    ADD_TAGS,
    CANCEL_JOB,
    CREATE_JOB,
    DELETE_DOCUMENT,
    GET_DOCUMENT,
    GET_STATUS,
    GET_VERSION,
    LIST_DOCUMENTS,
    LIST_JOBS,
    LIST_TAGS,
    LIST_TRASH,
    LIST_VERSIONS,
    PATCH_NOTE,
    REMOVE_TAG,
    RESTORE_VERSION,
    RETRY_JOB,
    SEARCH,
    UPDATE_WAIT_SECONDS,
    WITHOUT_CHUNKS,
    DeleteQuery,
    DocumentQuery,
    DocumentsQuery,
    JobsQuery,
    NoteQuery,
    PageQuery,
    TagsQuery,
    VersionQuery,
)
from kb_contracts.http.downloads import SAFE_HEADERS, file_response
from kb_server import collection_moves
from kb_server.access.grants import EVERYBODY, Grant
from kb_server.collection_tags import PREFIX, split_tags, tag_of, tags_for_search, tags_for_submission
from kb_server.engine_client.errors import EngineFault, Refused
from kb_server.engine_faults import tool_error
from kb_server.hosting.calls import new_call, on_behalf_of
from kb_server.note_edits import difference
from kb_server.pages.forms import Form, FormError
from kb_server.pages.marking import marked
from kb_server.pages.sessions import COOKIE, PAGES, SESSION_SECONDS, Sessions
from kb_server.services import SERVER_VERSION, Services, http_base
from kb_server.tool import ToolError
from mcp_aiohttp.guard import GATE, route_of
from mcp_aiohttp.protocol.caller import Caller, Identity
from mcp_aiohttp.protocol.jsonrpc import Refusal

log = logging.getLogger(__name__)

S = TypeVar("S", bound=msgspec.Struct)
Handler = Callable[[web.Request], Awaitable[web.Response]]
Page = Callable[["Visit"], Awaitable[web.Response]]

_RESULTS, _DOCUMENTS, _JOBS, _PASSAGES, _VERSIONS = 10, 50, 50, 100, 50
_TEXT_CHARS = 100_000
_COLLECTIONS = 1_000
_NEAR = 6
_SYNTAX = re.compile(r'["“”„«»]|(?<!\S)-')
_OWN_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]*")
_DOCUMENT = "/documents/{document_id:[0-9a-f-]{1,36}}"
_VERSION = f"{_DOCUMENT}/versions/{{version:[0-9]{{1,15}}}}"
_JOB = "/jobs/{job_id:[0-9a-f-]{36}}"

DONE = {
    "added": "Accepted. It can be searched when its job has completed.",
    "saved": "Saved.",
    "update": "Accepted. The note has its new text when its job has completed.",
    "removed": "Removed. For some time it is among the removed documents.",
    "purged": "Removed, with all that was kept of it.",
    "restored": "Restored.",
    "cancelled": "The job is cancelled.",
    "queued": "The job is queued again.",
}
"""What a page says of the form that led to it."""

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Under "no-referrer" a browser hides the origin of its own forms too, and they would be refused.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
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


class Visit:
    """One request for a page, by somebody who may see it: what `grant` says."""

    def __init__(self, pages: Pages, request: web.Request, session: str, grant: Grant, form: Form) -> None:
        self.request = request
        self.grant = grant
        self.query: Mapping[str, str] = request.query
        self.form = form
        self._pages = pages
        self._session = session

    def show(self, template: str, *, status: int = 200, **values: Any) -> web.Response:
        """The page that a template makes of the values."""
        return self._pages.render(
            template,
            status,
            token=self._pages.sessions.form_token(self._session),
            needs_login=self._pages.sessions.needs_login,
            path=self.request.path,
            done=DONE.get(self.query.get("done", ""), ""),
            **values,
        )

    def again(self, **changed: object) -> str:
        """The address of this page with other parameters; an empty one is left out."""
        given = {name: value for name, value in self.query.items() if name not in ("done", *changed)}
        given |= {name: str(value) for name, value in changed.items() if value not in ("", None)}
        return f"{self.request.path}?{urlencode(given)}" if given else self.request.path


class Pages:
    """The pages over `services`, behind its keys."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self._services = services
        self.sessions = Sessions(services.keys, services.meter)
        self._is_secure = http_base(settings).lower().startswith("https:")
        self._templates = Environment(
            loader=PackageLoader("kb_server.pages"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {
            "collection_of": _collection,
            "tags_of": _tags,
            "types": get_args(m.DocType),
            "version": SERVER_VERSION,
        }

    async def root(self, request: web.Request) -> web.Response | None:
        """The first page, for browsers; None for those who did not ask for a page."""
        if "text/html" not in request.headers.get(hdrs.ACCEPT, ""):
            return None
        return await self._guarded(self._search)(request)

    def routes(self) -> Sequence[web.RouteDef]:
        """All but the first page."""
        read: dict[str, Page] = {
            "/documents": self._documents,
            _DOCUMENT: self._document,
            f"{_DOCUMENT}/note": self._note,
            f"{_DOCUMENT}/original": self._original,
            f"{_DOCUMENT}/remove": self._removal,
            f"{_DOCUMENT}/versions": self._versions,
            _VERSION: self._version,
            "/trash": self._trash,
            "/add": self._addition,
            "/collections": self._collections,
            "/jobs": self._jobs,
            "/state": self._state,
        }
        change: dict[str, Page] = {
            f"{_DOCUMENT}/note": self._save_note,
            f"{_DOCUMENT}/tags": self._save_tags,
            f"{_VERSION}/restore": self._restore,
            "/add": self._add,
            f"{_JOB}/cancel": partial(self._change_job, CANCEL_JOB, "cancelled"),
            f"{_JOB}/retry": partial(self._change_job, RETRY_JOB, "queued"),
        }
        return [
            *(web.get(path, self._guarded(page), allow_head=False) for path, page in read.items()),
            *(web.post(path, self._guarded(page, "write")) for path, page in change.items()),
            web.post(f"{_DOCUMENT}/remove", self._guarded(self._remove, "delete")),
            web.post("/logout", self._guarded(self._logout, None)),
            web.get("/login", self._login_page, allow_head=False),
            web.post("/login", self._login),
            *(web.get(f"/pages/{name}", _file(name, kind)) for name, kind in _FILES.items()),
        ]

    def render(self, template: str, status: int, **values: Any) -> web.Response:
        text = self._templates.get_template(f"{template}.html").render(values)
        headers = {**_HEADERS, hdrs.CACHE_CONTROL: "no-store"}
        return web.Response(text=text, status=status, content_type="text/html", headers=headers)

    # --- who may see them --------------------------------------------------------------------------

    def _guarded(self, page: Page, right: Right | None = "read") -> Handler:
        async def serve(request: web.Request) -> web.Response:
            session = request.cookies.get(COOKIE, "")
            grant = self.sessions.grant(session)
            known = grant is not None
            if not known and self.sessions.needs_login:
                there = f"?{urlencode({'to': request.path_qs})}" if request.method == hdrs.METH_GET else ""
                return _go(f"/login{there}")
            if not known:
                session = self.sessions.begin()
            with Form() as form:
                visit = Visit(self, request, session, grant or EVERYBODY, form)
                response = await self._answer(page, visit, right)
            if not known:
                self._give(response, session)
            fields = {"route": route_of(request), "status": response.status, "caller": visit.grant.name}
            log.info("Served a page", extra=fields)
            return response

        return serve

    async def _answer(self, page: Page, visit: Visit, right: Right | None) -> web.Response:
        request, form = visit.request, visit.form
        settings = self._services.settings
        try:
            if request.method == hdrs.METH_POST:
                await form.read(
                    request, settings.home / "staging", settings.max_upload_bytes, self._check_token
                )
            grant, address = visit.grant, request.app[GATE].address_of(request)
            if right is not None and right not in grant.access.rights:
                raise FormError(grant.refusal(right, PAGES), 403)
            caller = Caller("pages", request.headers, address, Identity(grant.name, grant))
            with on_behalf_of(new_call(None, caller)):
                return await page(visit)
        except EngineFault as fault:
            status = _FAULTS.get(fault.reason, 422) if isinstance(fault, Refused) else 502
            return visit.show("failed", status=status, message=tool_error(fault).message)
        except ToolError as error:
            return visit.show("failed", status=getattr(error, "status", 422), message=error.message)

    def _check_token(self, request: web.Request, form: Form) -> None:
        if not self.sessions.is_form_token(request.cookies.get(COOKIE, ""), form["token"]):
            raise FormError("The form is of another session. Go back, load the page again, and repeat.", 403)

    def _give(self, response: web.Response, session: str) -> None:
        response.set_cookie(
            COOKIE,
            session,
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="Strict",
            secure=self._is_secure,
        )

    async def _login_page(self, request: web.Request) -> web.Response:
        if not self.sessions.needs_login:
            return _go("/")
        return self.render("login", 200, message="", to=_own(request.query.get("to", "")))

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
            except Refusal as refusal:
                gate.report_refusal(request, str(refusal.data["error_type"]), refusal.status)
                return self.render("login", refusal.status, message=refusal.message, to=to)
            session = self.sessions.login(key)
            if session is None:
                gate.tokens.wrong.count(address)
                gate.report_refusal(request, "wrong_login", 403)
                return self.render("login", 403, message="That is not the key of this server.", to=to)
        gate.tokens.wrong.accept(address, key)
        response = _go(to)
        self._give(response, session)
        return response

    async def _logout(self, _visit: Visit) -> web.Response:
        response = _go("/login")
        response.del_cookie(COOKIE)
        return response

    # --- what they show ----------------------------------------------------------------------------

    async def _search(self, visit: Visit) -> web.Response:
        query, collection = visit.query.get("q", "").strip(), visit.query.get("collection", "")
        collections = await self._named_collections()
        if not query:
            newest = DocumentsQuery(sort_by="updated_at", limit=_RESULTS)
            listed = await self._services.engine.call(LIST_DOCUMENTS, query=newest)
            return visit.show("search", query="", given=visit.query, collections=collections, newest=listed)
        request = _fit(
            m.SearchRequest,
            query=query,
            top=_RESULTS,
            tags=tags_for_search(collection or None, []),
            doc_type=visit.query.get("type"),
            mode=visit.query.get("mode"),
            cursor=visit.query.get("cursor"),
            filters=_filled(source_path_prefix=visit.query.get("path")),
            collapse=True,
            pages=True,
        )
        answer = await self._services.engine.call(SEARCH, body=request)
        following = visit.again(cursor=answer.next_cursor) if answer.next_cursor else ""
        return visit.show(
            "search",
            query=query,
            given=visit.query,
            collections=collections,
            answer=answer,
            passages=[(result, marked(result.chunk.text, query)) for result in answer.results],
            around={"previous": "", "following": following},
        )

    async def _documents(self, visit: Visit) -> web.Response:
        collection = visit.query.get("collection", "")
        query = _fit(
            DocumentsQuery,
            tag=tag_of(collection) if collection else None,
            doc_type=visit.query.get("type"),
            source_path_prefix=visit.query.get("path"),
            sort_by=visit.query.get("sort") or "updated_at",
            sort_order="asc" if visit.query.get("sort") in ("title", "filename") else "desc",
            offset=visit.query.get("offset"),
            limit=_DOCUMENTS,
        )
        listed = await self._services.engine.call(LIST_DOCUMENTS, query=query)
        return visit.show(
            "documents",
            given=visit.query,
            collections=await self._named_collections(),
            listed=listed,
            around=_around(visit, listed.offset, len(listed.documents), listed.total, _DOCUMENTS),
        )

    async def _document(self, visit: Visit) -> web.Response:
        place = _fit(DocumentQuery, chunk_offset=visit.query.get("offset"), chunk_limit=_PASSAGES)
        document = await self._services.engine.call(
            GET_DOCUMENT, path={"document_id": visit.request.match_info["document_id"]}, query=place
        )
        return visit.show(
            "document",
            document=document,
            passages=_passages(document.chunks),
            size=_PASSAGES,
            near=await self._near(document),
            collections=await self._named_collections(),
            around=_around(
                visit, document.chunk_offset, len(document.chunks), document.chunk_count, _PASSAGES
            ),
        )

    async def _original(self, visit: Visit) -> web.Response:
        """The file that a document was made of, to be saved; it comes through here as it is taken."""
        engine = self._services.engine
        document = await engine.call(
            GET_DOCUMENT,
            path={"document_id": visit.request.match_info["document_id"]},
            query=WITHOUT_CHUNKS,
        )
        async with engine.original(document) as content:
            response = await file_response(content)
            response.headers.update({**_HEADERS, **SAFE_HEADERS, hdrs.CACHE_CONTROL: "no-store"})
            await response.prepare(visit.request)
            try:
                await response.write_eof()
            except EngineFault as fault:  # too late for another answer: what was sent is known to be cut
                log.warning("A file broke off", extra={"reason": fault.detail})
                if visit.request.transport is not None:
                    visit.request.transport.abort()
        return response

    async def _near(self, document: m.Document) -> list[m.SearchResult]:
        """What is about the same as its title."""
        query = _SYNTAX.sub(" ", document.title)[: m.MAX_QUERY_CHARS].strip()
        if not query:
            return []
        request = m.SearchRequest(query=query, top=_NEAR, per_document=1, detail="locations")
        try:
            answer = await self._services.engine.call(SEARCH, body=request)
        except Refused:  # such as a title of punctuation alone
            return []
        near = {result.document.id: result for result in reversed(answer.results)}
        near.pop(document.id, None)
        return list(reversed(near.values()))

    async def _note(self, visit: Visit) -> web.Response:
        document, text = await self._read_note(visit.request.match_info["document_id"])
        return visit.show("note", document=document, title=document.title, text=text)

    async def _save_note(self, visit: Visit) -> web.Response:
        document_id, form = visit.request.match_info["document_id"], visit.form
        title, text, version = form["title"], form.text("text"), form["version"]
        patch = _fit(m.NotePatch, text=text, title=title, expected_version=version)
        waiting = NoteQuery(wait=round(min(UPDATE_WAIT_SECONDS, self._services.engine.longest_wait), 3))
        try:
            answer = await self._services.engine.call(
                PATCH_NOTE, path={"document_id": document_id}, query=waiting, body=patch
            )
        except Refused as refused:
            if refused.reason != "version_conflict":
                raise
            document, theirs = await self._read_note(document_id)
            message = (
                "Somebody else changed the note meanwhile; below is your text, and theirs. Save again to "
            )
            message += "replace theirs."
            return visit.show(
                "note", status=409, document=document, title=title, text=text, theirs=theirs, message=message
            )
        if isinstance(answer, m.Job):
            return _go("/jobs?done=update")
        return _go(f"/documents/{answer.id}?done=saved")

    async def _read_note(self, document_id: str) -> tuple[m.DocumentDetail, str]:
        document = await self._services.engine.call(
            GET_DOCUMENT, path={"document_id": document_id}, query=DocumentQuery(chunks=False, text=True)
        )
        if document.text is msgspec.UNSET:
            raise ToolError("not_a_note", "Only notes can be edited. Add the changed file again instead.")
        return document, document.text

    async def _save_tags(self, visit: Visit) -> web.Response:
        engine = self._services.engine
        path = {"document_id": visit.request.match_info["document_id"]}
        found = await engine.call(GET_DOCUMENT, path=path, query=WITHOUT_CHUNKS)
        document: m.Document = found
        wanted = tags_for_search(None, _listed(visit.form["tags"]))
        collection = visit.form["collection"]
        if collection and collection != _collection(document.tags):
            tag_of(collection)  # refused before anything is changed
        present = _tags(document.tags)
        if new := [tag for tag in wanted if tag not in present]:
            document = await engine.call(
                ADD_TAGS, path=path, body=m.TagsRequest(tags=new), if_match=document.version
            )
        for tag in present:
            if tag not in wanted:
                document = await engine.call(REMOVE_TAG, path={**path, "tag": tag}, if_match=document.version)
        if collection and collection != _collection(document.tags):
            document = await collection_moves.move(engine, document, collection, clock=self._services.clock)
        return _go(f"/documents/{document.id}?done=saved")

    async def _removal(self, visit: Visit) -> web.Response:
        document = await self._services.engine.call(
            GET_DOCUMENT,
            path={"document_id": visit.request.match_info["document_id"]},
            query=WITHOUT_CHUNKS,
        )
        return visit.show("remove", document=document)

    async def _remove(self, visit: Visit) -> web.Response:
        path = {"document_id": visit.request.match_info["document_id"]}
        purge = bool(visit.form["purge"])
        await self._services.engine.call(DELETE_DOCUMENT, path=path, query=DeleteQuery(purge=purge))
        return _go(f"/documents?done={'purged' if purge else 'removed'}")

    async def _versions(self, visit: Visit) -> web.Response:
        key = visit.request.match_info["document_id"]
        query = _fit(PageQuery, offset=visit.query.get("offset"), limit=_VERSIONS)
        listed = await self._services.engine.call(LIST_VERSIONS, path={"document_id": key}, query=query)
        return self._list_versions(visit, listed, of=key)

    async def _trash(self, visit: Visit) -> web.Response:
        query = _fit(PageQuery, offset=visit.query.get("offset"), limit=_VERSIONS)
        return self._list_versions(visit, await self._services.engine.call(LIST_TRASH, query=query), of="")

    def _list_versions(self, visit: Visit, listed: m.PastVersionList, of: str) -> web.Response:
        around = _around(visit, listed.offset, len(listed.versions), listed.total, _VERSIONS)
        return visit.show("versions", listed=listed, of=of, around=around)

    async def _version(self, visit: Visit) -> web.Response:
        query = _fit(VersionQuery, text_offset=visit.query.get("offset"), text_limit=_TEXT_CHARS)
        past = await self._services.engine.call(GET_VERSION, path=visit.request.match_info, query=query)
        around = _around(visit, past.text_offset, len(past.text), past.text_length, _TEXT_CHARS)
        return visit.show("version", past=past, difference=await self._difference(past), around=around)

    async def _difference(self, past: m.PastVersionDetail) -> str:
        """To the note as it stands now; empty where there is none, or its text has not come whole."""
        if past.removed or past.doc_type != "note" or len(past.text) < past.text_length:
            return ""
        _, text = await self._read_note(str(past.document_id))
        return difference(past.text, text)

    async def _restore(self, visit: Visit) -> web.Response:
        document = await self._services.engine.call(RESTORE_VERSION, path=visit.request.match_info)
        return _go(f"/documents/{document.id}?done=restored")

    async def _addition(self, visit: Visit) -> web.Response:
        return visit.show("add", collections=await self._named_collections(), formats=sorted(FORMATS))

    async def _add(self, visit: Visit) -> web.Response:
        form, engine = visit.form, self._services.engine
        tags = tags_for_submission(form["collection"] or None, _listed(form["tags"]))
        common: dict[str, Any] = {"tags": tags, "dedup_scope": tags[0]}
        text, title = form.text("text"), form["title"] or None
        if not text.strip() and not form.files:
            raise FormError("Choose a file, or write a text.", 422)
        if text.strip():
            await engine.call(CREATE_JOB, body=_fit(m.NoteRequest, text=text, title=title, **common))
        for file in form.files:
            await engine.send_file(file, _fit(m.FileFields, title=title, **common))
        return _go("/jobs?done=added")

    async def _collections(self, visit: Visit) -> web.Response:
        return visit.show("collections", collections=await self._listed_collections())

    async def _jobs(self, visit: Visit) -> web.Response:
        query = _fit(
            JobsQuery, status=visit.query.get("status"), offset=visit.query.get("offset"), limit=_JOBS
        )
        listed = await self._services.engine.call(LIST_JOBS, query=query)
        return visit.show(
            "jobs",
            given=visit.query,
            listed=listed,
            going_on=any(job.status not in m.FINAL_STATUSES for job in listed.jobs),
            around=_around(visit, listed.offset, len(listed.jobs), listed.total, _JOBS),
        )

    async def _change_job(self, operation: Any, done: str, visit: Visit) -> web.Response:
        await self._services.engine.call(operation, path={"job_id": visit.request.match_info["job_id"]})
        return _go(f"/jobs?done={done}")

    async def _state(self, visit: Visit) -> web.Response:
        return visit.show("state", state=await self._services.engine.call(GET_STATUS))

    async def _listed_collections(self) -> list[m.TagCount]:
        query = TagsQuery(prefix=PREFIX, limit=_COLLECTIONS)
        return (await self._services.engine.call(LIST_TAGS, query=query)).tags

    async def _named_collections(self) -> list[str]:
        return [each.tag.removeprefix(PREFIX) for each in await self._listed_collections()]


def _file(name: str, kind: str) -> Handler:
    body = files(__package__).joinpath(name).read_bytes()

    async def serve(_request: web.Request) -> web.Response:
        headers = {**_HEADERS, hdrs.CACHE_CONTROL: "max-age=300"}
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    return serve


def _go(there: str) -> web.Response:
    headers = {hdrs.LOCATION: there, hdrs.CACHE_CONTROL: "no-store"}
    return web.Response(status=303, headers=headers, content_type="text/plain")


def _own(path: str) -> str:
    """A path of this server, or its first page: a login leads nowhere else."""
    return path if _OWN_PATH.fullmatch(path) else "/"


def _filled(**values: object) -> dict[str, object] | None:
    return {name: value for name, value in values.items() if value not in ("", None)} or None


def _fit(kind: type[S], **values: object) -> S:
    """A request of this kind; what is empty counts as not given.

    Raises:
        FormError: the values do not fit.
    """
    try:
        return msgspec.convert(_filled(**values) or {}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise FormError(f"That does not fit: {error}.", 422) from error


def _around(visit: Visit, offset: int, count: int, total: int, size: int) -> dict[str, str]:
    """The addresses of the page before and the page after this one; empty where there is none."""
    after = offset + count
    return {
        "previous": visit.again(offset=max(0, offset - size) or None) if offset else "",
        "following": visit.again(offset=after) if count and after < total else "",
    }


def _passages(chunks: Sequence[m.Chunk]) -> list[tuple[m.Chunk, str]]:
    """The passages, each without what the one before it has already."""
    passages, place = [], 0
    for chunk in chunks:
        passages.append((chunk, chunk.text[max(0, place - chunk.start) :]))
        place = max(place, chunk.end)
    return passages


def _listed(text: str) -> list[str]:
    return [tag for each in text.split(",") if (tag := each.strip())]


def _collection(tags: Sequence[str]) -> str:
    return split_tags(tags).collection or ""


def _tags(tags: Sequence[str]) -> list[str]:
    return split_tags(tags).tags
