"""Requests: path, query, headers and body become an operation's parameters, by the OpenAPI document."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web

from .promise import Promise, Refused, parsed
from .search import mode_of
from .store import Row
from .texts import Unreadable, decoded, format_of


def parts(data: bytes, boundary: bytes) -> tuple[tuple[str, str, str | None, bytes] | None, dict[str, str]]:
    """Return the file with its name, type and charset, and the fields, of a multipart body.

    Raises:
        Refused: it is not multipart, is truncated, or repeats a part.
    """
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
            heading = data[at:head].decode()
        except UnicodeDecodeError as error:
            raise Refused("invalid_parameter", "A filename is UTF-8.", parameter="file") from error
        try:
            named = dict(re.findall(r'(name|filename)="([^"]*)"', heading))
            content = data[head + 4 : end]
            name = named["name"]
            if name == "file":
                if file is not None:
                    raise Refused("invalid_parameter", "Send one file.", parameter="file")
                last = re.split(r"[/\\]", named.get("filename", ""))[-1]
                kind = re.search(r"(?im)^content-type:\s*([\w/+.-]+)", heading)
                found = re.search(r'(?im)^content-type:.*;\s*charset="?([^";\s]+)', heading)
                charset = found[1].lower() if found and found[1].lower() != "utf-8" else None
                types = kind[1].lower() if kind else "", charset
                file = ("" if last in {".", ".."} else last, *types, content)
            elif name in fields:
                raise Refused("invalid_parameter", f"{name} is given twice.", parameter=name)
            else:
                fields[name] = content.decode()
        except (UnicodeDecodeError, KeyError) as error:
            raise broken from error
        at = end + 2 + len(mark)
    return file, fields


MULTIPART = "multipart/form-data"
MAX_JSON, MAX_FILE, MAX_METADATA = 8 * 2**20, 100 * 2**20, 64 * 2**10


class Requests:
    """Reads requests; files are written to the folder `spool`."""

    def __init__(self, promise: Promise, spool: Path) -> None:
        self._promise, self._spool = promise, spool
        self._spool.mkdir(parents=True, exist_ok=True)

    def parameters(self, request: web.Request, operation: Row) -> Row:
        """Return the parameters in path and query.

        Raises:
            Refused: they are invalid, or everything would be removed without a confirmation.
        """
        params = self._values(request.match_info, operation, "path")
        given = list(request.query.items())
        if operation["operationId"] == "clearDocuments" and request.query.get("confirm", "false") == "false":
            others = [pair for pair in given if pair[0] != "confirm"]
            self._promise.query(operation, [*others, ("confirm", "true")])
            raise Refused("confirmation_required", "Send confirm=true to remove everything.")
        return params | self._promise.query(operation, given)

    def headers(self, request: web.Request, operation: Row) -> Row:
        """Return the headers that the operation defines.

        Raises:
            Refused: one is invalid.
        """
        return self._values(request.headers, operation, "header")

    def _values(self, given: Mapping[str, str], operation: Row, where: str) -> Row:
        return {
            name: self._promise.value(given[name], each["schema"], name)
            for name, each in self._promise.parameters(operation, where).items()
            if name in given
        }

    async def body(self, request: web.Request, operation: Row) -> Any:
        """Return the body, or None if the operation has no body.

        Raises:
            Refused: it is invalid.
        """
        if "requestBody" not in operation:
            return None
        kind = request.content_type if "Content-Type" in request.headers else ""
        taken = operation["requestBody"]["content"]
        if kind not in taken:
            raise Refused("unsupported_media_type", f"Send {' or '.join(taken)}.")
        if kind == MULTIPART:
            return await self._file(request, self._promise.body_schema(operation, kind))
        body = parsed(await _limited(request, MAX_JSON))
        if not isinstance(body, dict):
            raise Refused("invalid_request", "The body is not an object.")
        schema = self._promise.body_schema(operation, kind)
        if "mode" in schema["properties"]:
            mode_of(body)
        self._promise.check(body, schema)
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
        file, fields = parts(data, boundary[1].strip().encode())
        for name in fields:
            if name not in schema["properties"]:
                raise Refused("unknown_parameter", f"There is no field {name!r}.", parameter=name)
        if file is None or not file[0]:
            raise Refused("missing_parameter", "Send a part `file` with a filename.", parameter="file")
        filename, content_type, charset, content = file
        if len(filename) > 255:
            raise Refused("invalid_parameter", "The filename is too long.", parameter="file")
        values: Row = {"title": None, "tags": [], "metadata": {}, "source_path": None, "dedup_scope": ""}
        for name, text in fields.items():
            values[name] = self._field(name, text, schema["properties"][name])
        _check_metadata(values)
        form = format_of(filename) or ("txt" if content_type == "text/plain" else None)
        if form is None:
            raise Refused("unsupported_format", "Send PDF, DOCX, HTML, Markdown or text.", parameter="file")
        if values.get("force_ocr") == "true" and form != "pdf":
            raise Refused("invalid_parameter", "There is nothing to look at in it.", parameter="force_ocr")
        if len(content) > MAX_FILE:
            raise Refused("payload_too_large", "The file is over the limit.")
        if form not in {"pdf", "docx"} and charset:
            await asyncio.to_thread(_check_charset, content, charset)
        path = self._spool / uuid4().hex
        await asyncio.to_thread(_write, path, content)
        sha256 = hashlib.sha256(content).hexdigest()
        named = {"filename": filename, "format": form, "charset": charset}
        return {**values, **named, "sha256": sha256, "spooled": path}

    def _field(self, name: str, text: str, schema: Row) -> Any:
        value: Any = text
        if "contentSchema" in schema:
            with suppress(Refused):
                value = parsed(text.encode())
            schema = schema["contentSchema"]
        self._promise.check(value, schema, name)
        return value


def _whole(value: Any) -> Any:
    # In JSON Schema 5.0 is an integer.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_metadata(body: Row) -> None:
    if len(json.dumps(body.get("metadata"), ensure_ascii=False).encode()) > MAX_METADATA:
        raise Refused("invalid_parameter", "The metadata is over 64 KiB.", parameter="metadata")


async def _limited(request: web.Request, most: int) -> bytes:
    read_so_far = bytearray()
    async for part in request.content.iter_any():
        read_so_far += part
        if len(read_so_far) > most:
            raise Refused("payload_too_large", "The body is over the limit.")
    return bytes(read_so_far)


def _check_charset(content: bytes, charset: str) -> None:
    try:
        decoded(content, charset)
    except LookupError as error:
        raise Refused("invalid_parameter", f"There is no charset {charset}.", parameter="file") from error
    except Unreadable as error:
        raise Refused(error.code, str(error), parameter="file") from error


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
