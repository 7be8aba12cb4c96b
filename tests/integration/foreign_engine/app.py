"""An independent engine: another program with another store, for the same contract.

    python -m foreign_engine.app

keeps its data in `KB_HOME`, listens on port 8000 and requires the key `KB_API_KEY` if it is set.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from .citations import checked
from .history import History
from .promise import Promise, Refused
from .requests import Requests
from .search import Search
from .store import ENDED, Database, Documents, Jobs, Row, status
from .texts import TYPES, Passage, Section, Unreadable, first_line, passages, read


class Intake:
    """The single worker; `condition` is notified of each accepted and each ended job."""

    def __init__(
        self, database: Database, jobs: Jobs, documents: Documents, condition: asyncio.Condition
    ) -> None:
        self._database, self._jobs, self._documents, self._condition = database, jobs, documents, condition

    async def work(self) -> None:
        """Process accepted jobs in order, for ever."""
        while True:
            taken = self._jobs.take()
            if taken is None:
                async with self._condition:
                    await self._condition.wait()
                continue
            await self._take_in(*taken)
            async with self._condition:
                self._condition.notify_all()

    async def _take_in(self, job: Row, request: Row) -> None:
        spooled = Path(request["spooled"])
        try:
            if request["kind"] == "note":
                made, sections = note(request["text"]), [Section(request["text"])]
            else:
                made, sections = await asyncio.to_thread(_read_file, spooled, request)
            self._commit(job, request, made, await asyncio.to_thread(passages, sections))
        except Unreadable as error:
            # The file is kept for a retry.
            failure = {"code": error.code, "message": str(error)}
            self._jobs.end(job, "failed", error=failure, retryable=True)
            return
        if request["kind"] == "file":
            spooled.unlink(missing_ok=True)

    def _commit(self, job: Row, request: Row, made: Row, chunks: Sequence[Passage]) -> None:
        """Store the results of a job and close it in one transaction; do nothing for a cancelled job."""
        with self._database.transaction():
            if self._jobs.one(job["id"])["status"] != "running":
                return
            documents, path = self._documents, request["source_path"]
            duplicate = documents.duplicate(
                request["kind"], made["same"], request["dedup_scope"], request["tags"]
            )
            before = documents.pointed_to(request) if path else []
            own = [number for number in before if documents.is_only(number, path)]
            if duplicate is not None:
                number = duplicate
            elif own:
                number = own[0]
                documents.take_over(number, request, made, chunks)
            else:
                number = documents.add(request, made, chunks)
            others = [each for each in before if each != number]
            for each in others:
                documents.leave(each, path)
            documents.merge(number, request)
            same = duplicate is not None and (duplicate in before or not path) and not others
            outcome = "unchanged" if same else "replaced" if before else "created"
            self._jobs.end(
                job, "completed", document_id=number, document_uid=self._documents.one(number)["uid"],
                deduplicated=duplicate is not None, progress=1.0, completed_steps=1, outcome=outcome,
                left_out=_left_out(documents.one(number), request),
            )  # fmt: skip


def _left_out(document: Row, request: Row) -> list[str]:
    left = ["title"] if request["title"] not in (None, document["title"]) else []
    left += ["tags"] if not set(request["tags"]) <= set(document["tags"]) else []
    left += ["metadata"] if request["metadata"] not in ({}, document["metadata"]) else []
    return left


def note(text: str) -> Row:
    data = text.encode()
    return {
        "sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "title": first_line(text),
        "doc_type": "note", "format": None, "pages": None, "note": text,
        "same": hashlib.sha256(text.rstrip().encode()).hexdigest(),
    }  # fmt: skip


def _read_file(path: Path, request: Row) -> tuple[Row, list[Section]]:
    if request.get("force_ocr") == "true":
        raise Unreadable("ocr_failed", "This engine only reads the text that a PDF holds.")
    data, kind = path.read_bytes(), request["format"]
    found = read(data, kind, request["charset"])
    made = {
        "sha256": request["sha256"], "size": len(data), "title": found.title or request["filename"],
        "doc_type": TYPES[kind], "format": kind, "pages": found.pages, "same": request["sha256"],
    }  # fmt: skip
    return made, found.sections


class Operations:
    """The handlers of the operations; `condition` is notified of ended jobs."""

    def __init__(
        self,
        database: Database,
        jobs: Jobs,
        documents: Documents,
        history: History,
        condition: asyncio.Condition,
        promise: Promise,
    ) -> None:
        self._database, self._jobs, self._documents, self._condition = database, jobs, documents, condition
        self._history = history
        self._search = Search(documents, promise.members("DocumentSummary"))
        self._started_at = database.now()

    def create_job(self, params: Row) -> Row:
        body = params["body"]
        kind = "file" if "spooled" in body else "note"
        request = {
            "kind": kind,
            "text": "",
            "filename": None,
            **body,
            "tags": list(dict.fromkeys(body["tags"])),
        }
        request["spooled"] = str(body.get("spooled", ""))
        return self._jobs.add(request)

    def list_jobs(self, params: Row) -> Row:
        return self._jobs.page(params)

    async def get_job(self, params: Row) -> Row:
        with suppress(TimeoutError):
            async with asyncio.timeout(params["wait"]), self._condition:
                await self._condition.wait_for(lambda: self._jobs.one(params["job_id"])["status"] in ENDED)
        return self._jobs.one(params["job_id"])

    def cancel_job(self, params: Row) -> Row:
        return self._jobs.cancel(params["job_id"])

    def retry_job(self, params: Row) -> Row:
        return self._jobs.retry(params["job_id"])

    def list_documents(self, params: Row) -> Row:
        return self._documents.page(params)

    def get_document(self, params: Row) -> Row:
        number = self._documents.number_of(params["document_id"])
        offset, limit = params["chunk_offset"], params["chunk_limit"]
        chunks = self._documents.chunks.of(number, offset, limit) if params["chunks"] else []
        page = {"chunks": chunks, "chunk_offset": offset, "chunk_limit": limit}
        text = self._documents.text(number) if params["text"] else None
        document = self._documents.one(number) | page | ({} if text is None else {"text": text})
        if params["similar"] and document["doc_type"] == "note":
            document["similar"] = self._search.similar(document, params["similar"])
        return document

    def get_original(self, params: Row) -> Row:
        """This engine keeps no files; hence its status omits them."""
        self._documents.number_of(params["document_id"])
        raise Refused("original_not_kept", "This engine keeps the text of a document, and no file.")

    get_picture = get_original

    def check_citation(self, params: Row) -> Row:
        try:
            number = self._documents.number_of(params["body"]["document"])
        except Refused:
            return {"status": "gone", **dict.fromkeys(("document_id", "version", "citation", "text"))}
        return checked(params["body"], self._documents.one(number), self._documents.chunks.of(number))

    def delete_document(self, params: Row) -> Row:
        number = self._documents.number_of(params["document_id"])
        self._documents.expect(number, params["if_match"])
        removed = self._documents.remove([number])
        if params["purge"]:
            self._history.drop(number)
        return removed

    def list_versions(self, params: Row) -> Row:
        return self._history.page(params, self._history.number_of(params["document_id"]))

    def get_version(self, params: Row) -> Row:
        number = self._history.number_of(params["document_id"])
        return self._history.detail(number, params["version"], params["text_offset"], params["text_limit"])

    def restore_version(self, params: Row) -> Row:
        number = self._history.number_of(params["document_id"])
        return self._history.restore(number, params["version"], params["if_match"])

    def purge_versions(self, params: Row) -> Row:
        return self._history.drop(self._history.number_of(params["document_id"]))

    def list_trash(self, params: Row) -> Row:
        return self._history.page(params)

    def remove_source(self, params: Row) -> Row:
        number = self._documents.number_of(params["document_id"])
        self._documents.expect(number, params["if_match"])
        return self._documents.take_off(number, params["source_path"])

    def clear_documents(self, params: Row) -> Row:
        """Remove all documents and cancel the earlier jobs."""
        waiting = self._jobs.waiting()
        for job_id in waiting:
            self._jobs.cancel(job_id)
        removed = self._documents.remove(self._documents.numbers())
        self._history.drop()
        return removed | {"jobs_cancelled": len(waiting)}

    def patch_note(self, params: Row) -> Row:
        number, body = self._documents.number_of(str(params["document_id"])), params["body"]
        if self._documents.one(number)["doc_type"] != "note":
            raise Refused("not_a_note", "Only notes can be changed in place.")
        for expected in (params["if_match"], body["expected_version"]):
            self._documents.expect(number, expected)
        made = note(body["text"]) if body["text"] is not None else None
        if self._documents.holds(number, body["title"], made):
            return self._documents.one(number)
        chunks = passages([Section(body["text"])]) if made else []
        self._history.keep(number)
        self._documents.rewrite(number, body["title"], made, chunks)
        return self._documents.one(number)

    def set_metadata(self, params: Row) -> Row:
        number = self._documents.number_of(params["document_id"])
        self._documents.expect(number, params["if_match"])
        self._documents.set_metadata(number, params["body"]["metadata"])
        return self._documents.one(number)

    def give_feedback(self, params: Row) -> Row:
        number = self._documents.number_of(params["document_id"])
        return self._documents.hear(number, params["voice"], params["body"]["signal"])

    def add_tags(self, params: Row) -> Row:
        number = self._documents.number_of(params["document_id"])
        self._documents.expect(number, params["if_match"])
        self._documents.add_tags(number, params["body"]["tags"])
        return self._documents.one(number)

    def remove_tag(self, params: Row) -> Row:
        number = self._documents.number_of(params["document_id"])
        self._documents.expect(number, params["if_match"])
        self._documents.remove_tag(number, params["tag"])
        return self._documents.one(number)

    def list_tags(self, params: Row) -> Row:
        return self._documents.tags(params)

    def get_status(self, params: Row) -> Row:
        return status(self._database, self._started_at)

    def get_health(self, params: Row) -> Row:
        return {"status": "ok"}

    def get_readiness(self, params: Row) -> Row:
        return {"status": "ready"}

    def search(self, params: Row) -> Row:
        return self._search.answer(params["body"])


OPEN = {"getHealth", "getReadiness"}


class Endpoint:
    """Answers requests; `condition` is notified of every change."""

    def __init__(
        self,
        database: Database,
        operations: Operations,
        requests: Requests,
        condition: asyncio.Condition,
        key: str,
    ) -> None:
        self._database, self._operations, self._requests = database, operations, requests
        self._condition, self._key = condition, key
        self._running: set[str] = set()

    @web.middleware
    async def gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Check the key first, and answer errors with problem documents."""
        try:
            self._require_key(request)
            answer: web.StreamResponse = await handler(request)
        except Refused as refused:
            return _problem(refused)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods - {"HEAD"}))
            return _problem(Refused("method_not_allowed", f"This path takes {allowed}."), Allow=allowed)
        except web.HTTPNotFound:
            return _problem(Refused("route_not_found", "There is no such path."))
        except web.HTTPRequestEntityTooLarge:
            return _problem(Refused("payload_too_large", "The body is over the limit."))
        return answer

    def _require_key(self, request: web.Request) -> None:
        operation = request.match_info.handler
        if not self._key or getattr(operation, "operation_id", "") in OPEN:
            return
        if any(len(request.headers.getall(name, ())) > 1 for name in ("Authorization", "Origin")):
            raise Refused("unauthorized", "Send Authorization and Origin once.")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode(), self._key.encode()):
            raise Refused("unauthorized", "Send the key as Authorization: Bearer.")

    async def serve(self, request: web.Request, operation: Row) -> web.Response:
        """Read a request, run it once for each idempotency key, and answer."""
        params = self._requests.parameters(request, operation)
        headers = self._requests.headers(request, operation)
        key = headers.get("Idempotency-Key")
        name = json.dumps([request.headers.get("Authorization"), operation["operationId"], key])
        joined = "202" in operation["responses"] and "200" in operation["responses"]
        # An update's retry joins the update, which is done here before the retry is read.
        if key is not None and name in self._running and not joined:
            raise Refused("in_progress", "This request is still running.", retry_after=1)
        self._running.add(name)
        try:
            params["if_match"] = _version(headers.get("If-Match"))
            params["voice"] = json.dumps([request.headers.get("Authorization"), headers.get("X-User-ID")])
            params["body"] = await self._requests.body(request, operation)
            return await self._once(operation, params, name if key is not None else "")
        finally:
            self._running.discard(name)

    async def _once(self, operation: Row, params: Row, name: str) -> web.Response:
        status = 202 if operation["operationId"] in {"createJob", "retryJob"} else 200
        handler = getattr(self._operations, re.sub("([A-Z])", r"_\1", operation["operationId"]).lower())
        if asyncio.iscoroutinefunction(handler):
            return _answer(await handler(params), 200)
        wanted = {name: value for name, value in params.items() if name != "wait"}
        fingerprint = hashlib.sha256(
            json.dumps(wanted, sort_keys=True, default=_without_path).encode()
        ).hexdigest()
        before = self._database.answered(name) if name else None
        if before and before["request"] != fingerprint:
            raise Refused("idempotency_mismatch", "The key belongs to another request.")
        if before:
            return _answer(json.loads(before["body"]), before["status"])
        with self._database.transaction():
            answer = handler(params)
            if name:
                self._database.keep_answer(name, fingerprint, status, json.dumps(answer))
        async with self._condition:
            self._condition.notify_all()
        return _answer(answer, status)


def _version(text: str | None) -> int | None:
    return int(text.strip('"')) if text is not None else None


def _without_path(value: object) -> str:
    return type(value).__name__


def _answer(answer: Row, status: int) -> web.Response:
    headers = {"ETag": f'"{answer["version"]}"'} if "created_at" in answer and "chunk_count" in answer else {}
    return web.json_response(answer, status=status, headers=headers)


def _problem(refused: Refused, **headers: str) -> web.Response:
    if refused.code == "unauthorized":
        headers["WWW-Authenticate"] = "Bearer"
    if "retry_after" in refused.more:
        headers["Retry-After"] = str(refused.more["retry_after"])
    return web.Response(
        status=refused.status,
        headers=headers,
        content_type="application/problem+json",
        text=json.dumps(refused.document()),
    )


DOCUMENT = Path(__file__).with_name("engine.openapi.yaml")


def application(endpoint: Endpoint, promise: Promise) -> web.Application:
    app = web.Application(middlewares=[endpoint.gate])
    for (method, path), operation in promise.operations.items():

        async def handle(request: web.Request, operation: Row = operation) -> web.Response:
            return await endpoint.serve(request, operation)

        handle.operation_id = operation["operationId"]  # type: ignore[attr-defined]  # read by the gate
        app.router.add_route(method, path, handle)
    return app


async def main() -> None:
    home = Path(os.environ.get("KB_HOME", "/data"))
    database, promise, condition = Database(home), Promise(DOCUMENT), asyncio.Condition()
    jobs, documents = Jobs(database), Documents(database)
    history = History(database, documents)
    documents.before_change = history.keep
    operations = Operations(database, jobs, documents, history, condition, promise)
    requests, key = Requests(promise, home / "arrived"), os.environ.get("KB_API_KEY", "")
    endpoint = Endpoint(database, operations, requests, condition, key)
    intake = asyncio.create_task(Intake(database, jobs, documents, condition).work())
    await serve_until_stopped(application(endpoint, promise))
    intake.cancel()
    with suppress(asyncio.CancelledError):
        await intake
    database.close()


async def serve_until_stopped(app: web.Application) -> None:
    """Listen on port 8000 until SIGTERM or SIGINT."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5, max_line_size=65_536)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 8000).start()  # in a container
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
