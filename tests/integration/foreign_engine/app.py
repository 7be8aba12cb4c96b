"""An engine that is not kb's: another program, another store, the same promise.

    python -m foreign_engine.app

keeps its data in `KB_HOME`, listens on port 8000 and wants `KB_API_KEY` where that is set.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import re
import signal
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web

from .base import ENDED, Base, Row, chunk_of, first_line
from .promise import Promise, Refused, parsed
from .texts import TYPES, Section, Unreadable, format_of, passages, read

JSON, MULTIPART = "application/json", "multipart/form-data"
MAX_JSON, MAX_FILE, MAX_METADATA = 8 * 2**20, 100 * 2**20, 64 * 2**10
WEAK = 0.2
_SUMMARY = (
    "id", "uid", "title", "doc_type", "format", "filename", "source_path", "metadata", "version",
    "created_at", "updated_at",
)  # fmt: skip
OPEN = {"getHealth", "getReadiness"}
DATED = re.compile(r"\d{4}-\d{2}-\d{2}")
TIMED = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,6})?([Zz]|[+-]\d{2}:\d{2})")


class Engine:
    """The operations, each a method of its id in snake case."""

    def __init__(self, base: Base, promise: Promise, key: str) -> None:
        self.base, self.promise, self.key = base, promise, key
        self.started_at = base.now()
        self.running: set[str] = set()
        self.news = asyncio.Condition()

    # --- every request --------------------------------------------------------------------------

    @web.middleware
    async def gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Errors as problem documents; the key before all else."""
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
        if not self.key or getattr(operation, "operation_id", "") in OPEN:
            return
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode(), self.key.encode()):
            raise Refused("unauthorized", "Send the key as Authorization: Bearer.")

    async def serve(self, request: web.Request, operation: Row) -> web.Response:
        """Read a request by the document, carry it out once for each key, answer."""
        asked: Row = {
            name: self.promise.value(request.match_info[name], each["schema"], name)
            for name, each in self.promise.parameters(operation, "path").items()
        }
        if operation["operationId"] == "clearDocuments" and request.query.get("confirm", "false") == "false":
            self.promise.query(operation, [pair for pair in request.query.items() if pair[0] != "confirm"])
            raise Refused("confirmation_required", "Send confirm=true to remove everything.")
        asked |= self.promise.query(operation, list(request.query.items()))
        headers = {
            name: self.promise.value(request.headers[name], each["schema"], name)
            for name, each in self.promise.parameters(operation, "header").items()
            if name in request.headers
        }
        key = headers.get("Idempotency-Key")
        name = json.dumps([request.headers.get("Authorization"), operation["operationId"], key])
        if key is not None and name in self.running:
            raise Refused("in_progress", "This request is still running.", retry_after=1)
        self.running.add(name)
        try:
            asked["version"] = _version(headers.get("If-Match"))
            asked["body"] = await self._body(request, operation)
            return await self._once(operation, asked, name if key is not None else "")
        finally:
            self.running.discard(name)

    async def _once(self, operation: Row, asked: Row, name: str) -> web.Response:
        status = 202 if operation["operationId"] == "createJob" else 200
        handler = getattr(self, re.sub("([A-Z])", r"_\1", operation["operationId"]).lower())
        if asyncio.iscoroutinefunction(handler):
            return _answer(await handler(asked), 200)
        fingerprint = hashlib.sha256(
            json.dumps(asked, sort_keys=True, default=_without_path).encode()
        ).hexdigest()
        before = self.base.answered(name) if name else None
        if before and before["request"] != fingerprint:
            raise Refused("idempotency_mismatch", "The key belongs to another request.")
        if before:
            return _answer(json.loads(before["body"]), before["status"])
        with self.base.transaction():
            told = handler(asked)
            if name:
                self.base.keep_answer(name, fingerprint, status, json.dumps(told))
        async with self.news:
            self.news.notify_all()
        return _answer(told, status)

    async def _body(self, request: web.Request, operation: Row) -> Any:
        if "requestBody" not in operation:
            return None
        kind = request.content_type if "Content-Type" in request.headers else ""
        taken = operation["requestBody"]["content"]
        if kind not in taken:
            raise Refused("unsupported_media_type", f"Send {' or '.join(taken)}.")
        if kind == MULTIPART:
            return await self._file(request, self.promise.body_schema(operation, kind))
        body = parsed(await _limited(request, MAX_JSON))
        if not isinstance(body, dict):
            raise Refused("invalid_request", "The body is not an object.")
        schema = self.promise.body_schema(operation, kind)
        if "mode" in schema["properties"]:
            _mode(body)
        self.promise.check(body, schema)
        body = {name: _whole(value) for name, value in body.items()}
        defaults = {name: each["default"] for name, each in schema["properties"].items() if "default" in each}
        body = {**defaults, **body}
        if isinstance(body.get("text"), str) and not body["text"].strip():
            raise Refused("invalid_parameter", "The text is empty.", parameter="text")
        _check_metadata(body)
        return body

    async def _file(self, request: web.Request, schema: Row) -> Row:
        boundary = re.search(r'boundary="?([^";]{1,70})"?', request.headers["Content-Type"])
        if boundary is None:
            raise Refused("invalid_request", "The body has no boundary.")
        data = await _limited(request, MAX_FILE + MAX_JSON)
        file, fields = _parts(data, boundary[1].strip().encode())
        for name in fields:
            if name not in schema["properties"]:
                raise Refused("unknown_parameter", f"There is no field {name!r}.", parameter=name)
        if file is None or not file[0]:
            raise Refused("missing_parameter", "Send a part `file` with a filename.", parameter="file")
        filename, content = file
        if len(filename) > 255:
            raise Refused("invalid_parameter", "The filename is too long.", parameter="file")
        values: Row = {"title": None, "tags": [], "metadata": {}, "source_path": None, "dedup_scope": ""}
        for name, text in fields.items():
            values[name] = self._field(name, text, schema["properties"][name])
        _check_metadata(values)
        if format_of(filename) is None:
            raise Refused("unsupported_format", "Send PDF, DOCX, HTML, Markdown or text.", parameter="file")
        if len(content) > MAX_FILE:
            raise Refused("payload_too_large", "The file is over the limit.")
        path = self.base.spool / uuid4().hex
        await asyncio.to_thread(_write, path, content)
        sha256 = hashlib.sha256(content).hexdigest()
        return {**values, "filename": filename, "sha256": sha256, "spooled": path}

    def _field(self, name: str, text: str, schema: Row) -> Any:
        value: Any = text
        if "contentSchema" in schema:
            with suppress(Refused):
                value = parsed(text.encode())
            schema = schema["contentSchema"]
        self.promise.check(value, schema, name)
        return value

    # --- operations -----------------------------------------------------------------------------

    def create_job(self, asked: Row) -> Row:
        """Accept a note or a file."""
        body = asked["body"]
        kind = "file" if "spooled" in body else "note"
        request = {
            "kind": kind,
            "text": "",
            "filename": None,
            **body,
            "tags": list(dict.fromkeys(body["tags"])),
        }
        request["spooled"] = str(body.get("spooled", ""))
        return self.base.add_job(request)

    def list_jobs(self, asked: Row) -> Row:
        """A page of jobs."""
        return self.base.jobs(asked)

    async def get_job(self, asked: Row) -> Row:
        """One job, waited for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(asked["wait"]), self.news:
                await self.news.wait_for(lambda: self.base.job(asked["job_id"])["status"] in ENDED)
        return self.base.job(asked["job_id"])

    def cancel_job(self, asked: Row) -> Row:
        """Cancel a job."""
        return self.base.cancel(asked["job_id"])

    def list_documents(self, asked: Row) -> Row:
        """A page of documents."""
        return self.base.documents(asked)

    def get_document(self, asked: Row) -> Row:
        """One document with a slice of its chunks."""
        number = self.base.number_of(asked["document_id"])
        offset, limit = asked["chunk_offset"], asked["chunk_limit"]
        chunks = self.base.chunks(number, offset, limit) if asked["chunks"] else []
        told = {"chunks": chunks, "chunk_offset": offset, "chunk_limit": limit}
        return self.base.document(number) | told

    def delete_document(self, asked: Row) -> Row:
        """Remove one."""
        return self.base.remove([self.base.number_of(asked["document_id"])])

    def clear_documents(self, asked: Row) -> Row:
        """Remove all."""
        return self.base.clear()

    def patch_note(self, asked: Row) -> Row:
        """Another text, another title."""
        number, body = self.base.number_of(str(asked["document_id"])), asked["body"]
        if self.base.document(number)["doc_type"] != "note":
            raise Refused("not_a_note", "Only notes can be changed in place.")
        self.base.expect(number, body["expected_version"])
        made = _note(body["text"]) if body["text"] is not None else None
        chunks = passages([Section(body["text"])]) if made else []
        self.base.rewrite(number, body["title"], made, chunks)
        return self.base.document(number)

    def add_tags(self, asked: Row) -> Row:
        """Tag a document."""
        number = self.base.number_of(asked["document_id"])
        self.base.expect(number, asked["version"])
        self.base.add_tags(number, asked["body"]["tags"])
        return self.base.document(number)

    def remove_tag(self, asked: Row) -> Row:
        """Take a tag off."""
        number = self.base.number_of(asked["document_id"])
        self.base.expect(number, asked["version"])
        self.base.remove_tag(number, asked["tag"])
        return self.base.document(number)

    def list_tags(self, asked: Row) -> Row:
        """Tags with counts."""
        return self.base.tags(asked)

    def get_status(self, asked: Row) -> Row:
        """How the engine is."""
        return self.base.status(self.started_at)

    def get_health(self, asked: Row) -> Row:
        """Alive."""
        return {"status": "ok"}

    def get_readiness(self, asked: Row) -> Row:
        """Ready."""
        return {"status": "ready"}

    def search(self, asked: Row) -> Row:
        """Passages that match."""
        began, body = asyncio.get_running_loop().time(), asked["body"]
        mode = _mode(body)
        numbers = [document["id"] for document in self._chosen(body)]
        found = [
            each for each in self.base.scored(body["query"], mode, numbers) if each[0] >= body["min_score"]
        ]
        results, omitted, left = [], 0, body["max_chars"]
        for score, row, explained in found[: body["top"]]:
            if left is not None and left <= 0:
                omitted += 1
                continue
            result = self._result(score, row, explained if body["explain"] else None, body["neighbors"], left)
            left = None if left is None else left - len(result["chunk"]["text"])
            results.append(result)
        return {
            "results": results, "total": len(found), "mode": mode, "omitted": omitted,
            "took_ms": (asyncio.get_running_loop().time() - began) * 1000,
            "weak": not found or found[0][0] < WEAK,
        }  # fmt: skip

    def _result(self, score: float, row: Row, explained: Row | None, around: int, left: int | None) -> Row:
        document = self.base.document(row["document"])
        chunk, place = chunk_of(row), row["place"]
        if left is not None:
            chunk["text"] = chunk["text"][:left]
        first = max(0, place - around)
        near = self.base.chunks(document["id"], first, place + around + 1 - first) if around else []
        return {
            "chunk": chunk, "score": min(1.0, score), "tags": document["tags"], "explain": explained,
            "document": {name: document[name] for name in _SUMMARY},
            "truncated": len(chunk["text"]) < len(row["text"]),
            "before": [each for each in near if each["index"] < place],
            "after": [each for each in near if each["index"] > place],
        }  # fmt: skip

    def _chosen(self, body: Row) -> list[Row]:
        filters = body["filters"] or {}
        first, last = (_moment(filters, name) for name in ("date_from", "date_to"))
        if first and last and first > last:
            raise Refused("contradiction", "The end is before the start.", parameter="filters.date_to")
        field = filters.get("date_field", "created_at")
        everything = {"limit": -1, "offset": 0, "sort_by": "id", "sort_order": "asc"}
        everything["doc_type"] = body["doc_type"]
        return [
            document
            for document in self.base.documents(everything)["documents"]
            if set(body["tags"]) <= set(document["tags"])
            and (not body["tags_any"] or set(body["tags_any"]) & set(document["tags"]))
            and (filters.get("format") is None or document["format"] in filters["format"])
            and (
                filters.get("source_type") is None
                or str(document["metadata"].get("source_type", "")) in filters["source_type"]
            )
            and any(
                path.startswith(filters.get("source_path_prefix") or "")
                for path in document["source_paths"] or ([] if filters.get("source_path_prefix") else [""])
            )
            and (not first or datetime.fromisoformat(document[field]) >= first)
            and (not last or datetime.fromisoformat(document[field]) <= last)
        ]

    # --- work -----------------------------------------------------------------------------------

    async def work(self) -> None:
        """Take in what was accepted, one after another, for ever."""
        while True:
            taken = self.base.take_job()
            if taken is None:
                async with self.news:
                    await self.news.wait()
                continue
            await self._take_in(*taken)
            async with self.news:
                self.news.notify_all()

    async def _take_in(self, told: Row, request: Row) -> None:
        spooled = Path(request["spooled"])
        try:
            if request["kind"] == "note":
                made, sections = _note(request["text"]), [Section(request["text"])]
            else:
                made, sections = await asyncio.to_thread(_read_file, spooled, request)
            self.base.commit(told, request, made, await asyncio.to_thread(passages, sections))
        except Unreadable as error:
            self.base.end_job(told, "failed", error={"code": error.code, "message": str(error)})
        if request["kind"] == "file":
            spooled.unlink(missing_ok=True)


def _note(text: str) -> Row:
    data = text.encode()
    return {
        "sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "title": first_line(text),
        "doc_type": "note", "format": None, "pages": None,
    }  # fmt: skip


def _read_file(path: Path, request: Row) -> tuple[Row, list[Section]]:
    data, kind = path.read_bytes(), format_of(request["filename"]) or ""
    found = read(data, kind)
    made = {
        "sha256": request["sha256"], "size": len(data), "title": found.title or request["filename"],
        "doc_type": TYPES[kind], "format": kind, "pages": found.pages,
    }  # fmt: skip
    return made, found.sections


def _mode(body: Row) -> str:
    mode, only = body.get("mode"), body.get("fts_only")
    if (only is True and mode not in {None, "fts"}) or (only is False and mode == "fts"):
        raise Refused("contradiction", "mode and fts_only exclude each other.", parameter="fts_only")
    return "fts" if only else mode or "hybrid"


def _moment(filters: Row, name: str) -> datetime | None:
    text = filters.get(name)
    if text is None:
        return None
    try:
        if DATED.fullmatch(text):
            day = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
            return (
                day if name == "date_from" else day.replace(hour=23, minute=59, second=59, microsecond=999999)
            )
        if TIMED.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Refused(
        "invalid_parameter", "Write 2025-01-31 or 2025-01-31T10:00:00Z.", parameter=f"filters.{name}"
    )


def _version(text: str | None) -> int | None:
    return int(text.strip('"')) if text is not None else None


def _whole(value: Any) -> Any:
    # To JSON Schema 5.0 is an integer.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_metadata(body: Row) -> None:
    if len(json.dumps(body.get("metadata"), ensure_ascii=False).encode()) > MAX_METADATA:
        raise Refused("invalid_parameter", "The metadata is over 64 KiB.", parameter="metadata")


def _without_path(value: object) -> str:
    return type(value).__name__


async def _limited(request: web.Request, most: int) -> bytes:
    read_so_far = bytearray()
    async for part in request.content.iter_any():
        read_so_far += part
        if len(read_so_far) > most:
            raise Refused("payload_too_large", "The body is over the limit.")
    return bytes(read_so_far)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _parts(data: bytes, boundary: bytes) -> tuple[tuple[str, bytes] | None, dict[str, str]]:
    """The file with its name, and the fields, of a multipart body."""
    broken = Refused("invalid_request", "The body is not multipart, or broke off.")
    mark, file, fields = b"--" + boundary, None, {}
    if not data.startswith(mark):
        raise broken
    at = len(mark)
    while data[at : at + 2] != b"--":
        head = data.find(b"\r\n\r\n", at)
        end = data.find(b"\r\n" + mark, head + 2)
        if data[at : at + 2] != b"\r\n" or head < 0 or end < 0:
            raise broken
        try:
            named = dict(re.findall(r'(name|filename)="([^"]*)"', data[at:head].decode()))
            content = data[head + 4 : end]
            name = named["name"]
            if name == "file":
                if file is not None:
                    raise Refused("invalid_parameter", "Send one file.", parameter="file")
                last = re.split(r"[/\\]", named.get("filename", ""))[-1]
                file = ("" if last in {".", ".."} else last, content)
            elif name in fields:
                raise Refused("invalid_parameter", f"{name} is given twice.", parameter=name)
            else:
                fields[name] = content.decode()
        except (UnicodeDecodeError, KeyError) as error:
            raise broken from error
        at = end + 2 + len(mark)
    return file, fields


def _answer(told: Row, status: int) -> web.Response:
    headers = {"ETag": f'"{told["version"]}"'} if "chunk_count" in told else {}
    return web.json_response(told, status=status, headers=headers)


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


def application(engine: Engine) -> web.Application:
    """The routes of the document, each bound to its operation."""
    app = web.Application(middlewares=[engine.gate])
    for (method, path), operation in engine.promise.operations.items():

        async def handle(request: web.Request, operation: Row = operation) -> web.Response:
            return await engine.serve(request, operation)

        handle.operation_id = operation["operationId"]  # type: ignore[attr-defined]  # read by the gate
        app.router.add_route(method, path, handle)
    return app


async def main() -> None:
    """Serve until SIGTERM."""
    home = Path(os.environ.get("KB_HOME", "/data"))
    base = Base(home)
    engine = Engine(
        base, Promise(Path(__file__).with_name("engine.openapi.yaml")), os.environ.get("KB_API_KEY", "")
    )
    worker = asyncio.create_task(engine.work())
    runner = web.AppRunner(application(engine), access_log=None, shutdown_timeout=5)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 8000).start()  # in a container
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await runner.cleanup()
    worker.cancel()
    with suppress(asyncio.CancelledError):
        await worker
    base.close()


if __name__ == "__main__":
    asyncio.run(main())
