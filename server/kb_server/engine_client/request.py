"""What goes over the wire for one operation: built once, and sent as often as it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from yarl import URL

from kb_contracts.api import models as m
from kb_contracts.api.operations import AnyOperation, PathStepError, to_params
from kb_server.engine_client.body import MultipartFile
from kb_server.engine_client.errors import Refused
from kb_server.engine_client.port import REQUEST_ID, TRACE


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request of an operation. `silence` is how long its response may keep still, in seconds."""

    operation: AnyOperation
    url: URL
    headers: Mapping[str, str]
    silence: float
    json: bytes | None = None
    file: MultipartFile | None = None


def build_request(
    base: str,
    operation: AnyOperation,
    headers: Mapping[str, str],
    *,
    silence: float,
    path: Mapping[str, object] | None = None,
    query: m.Request | None = None,
    body: Any = None,
    file: MultipartFile | None = None,
) -> EngineRequest:
    """A request of `operation` at `base`: its path filled in, what was given of `query`, and a body.

    Raises:
        Refused: a text cannot be written, or would be a step in the path.
    """
    headers = dict(headers)
    try:
        url = (
            URL(base + operation.fill_path(path), encoded=True) if path else _whole_url(base + operation.path)
        )
        if query is not None and (params := to_params(query)):
            url = url.with_query(params)
        if file is not None:
            headers |= {"Content-Type": file.content_type, "Content-Length": str(file.length)}
        elif body is not None:
            headers["Content-Type"] = "application/json"
        json = None if body is None else msgspec.json.encode(body)
    except PathStepError as error:
        raise Refused("invalid_parameter", str(error), members={"parameter": error.parameter}) from error
    except UnicodeEncodeError as error:
        raise Refused("invalid_parameter", "A text holds half a surrogate pair.") from error
    return EngineRequest(operation, url, headers, silence, json, file)


def common_headers(key: str) -> dict[str, str]:
    """What every request carries: `key` as the bearer (empty: none), and the call's id and trace."""
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "kb-server"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if request_id := REQUEST_ID.get():
        headers["X-Request-ID"] = request_id
    if trace := TRACE.get():
        headers |= trace
    return headers


@lru_cache(maxsize=64)
def _whole_url(url: str) -> URL:
    return URL(url, encoded=True)
