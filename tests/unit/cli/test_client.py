"""The client against servers that are no engine: every failure is one line with an exit status."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from kb_cli.client import WAIT_SECONDS, EngineClient, QueueFull, UnsupportedFormat
from kb_cli.output import CliError, Exit, NotFound
from kb_contracts.api import models as m
from kb_contracts.api.errors import ERRORS, EngineError
from kb_contracts.api.operations import (
    CREATE_JOB,
    GET_DOCUMENT,
    GET_JOB,
    GET_STATUS,
    LIST_DOCUMENTS,
    AnyOperation,
    DocumentQuery,
    DocumentsQuery,
)
from tests.support.contract_objects import job_with

JOB = job_with()


def answering(handler: Callable[[httpx.Request], httpx.Response], key: str = "") -> EngineClient:
    return EngineClient("http://engine:8000", key, transport=httpx.MockTransport(handler))


def problem(code: str, detail: str = "What happened.") -> httpx.Response:
    document = EngineError(code, detail).problem()
    return httpx.Response(
        document.status,
        content=msgspec.json.encode(document),
        headers={"Content-Type": "application/problem+json"},
    )


def job(status: m.JobStatus) -> httpx.Response:
    return httpx.Response(200, content=msgspec.json.encode(msgspec.structs.replace(JOB, status=status)))


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_every_code_of_the_contract_ends_with_its_status(code: str) -> None:
    """The status is 4 for "not found" and 1 for other refusals, with the engine's or the client's text."""
    other = NotFound if code.endswith("_not_found") else CliError
    kind = {"queue_full": QueueFull, "unsupported_format": UnsupportedFormat}.get(code, other)
    with answering(lambda _: problem(code)) as client, pytest.raises(CliError) as refused:
        client.send_file("a.txt", io.BytesIO(b""), m.FileFields())
    assert type(refused.value) is kind
    assert refused.value.status == (Exit.NOT_FOUND if other is NotFound else Exit.FAILED)
    assert refused.value.message == "What happened." or "KB_API_KEY" in refused.value.message


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"status": "ok"}),
        httpx.Response(200, content=b"\xff\xfe"),
        httpx.Response(302, headers={"Location": "http://elsewhere/"}),
        httpx.Response(404, text="nginx"),
        httpx.Response(500, text="oops"),
        httpx.Response(404, text="{", headers={"Content-Type": "application/problem+json"}),
        httpx.Response(404, json=[], headers={"Content-Type": "application/problem+json"}),
    ],
)
def test_a_peer_that_is_no_engine_is_reported(answer: httpx.Response) -> None:
    with (
        answering(lambda _: answer) as client,
        pytest.raises(CliError, match="not an engine of this version") as told,
    ):
        client.call(GET_STATUS)
    assert told.value.status is Exit.FAILED


@pytest.mark.parametrize(
    "error", [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError, httpx.WriteError]
)
def test_a_connection_that_fails_is_unreachable(error: type[httpx.RequestError]) -> None:

    def fail(request: httpx.Request) -> httpx.Response:
        raise error("", request=request)

    with answering(fail) as client, pytest.raises(CliError, match="http://engine:8000") as told:
        client.call(GET_STATUS)
    assert told.value.status is Exit.UNREACHABLE


@pytest.mark.parametrize(("key", "sent"), [("secret", "Bearer secret"), ("", None)])
def test_a_key_goes_with_every_request_and_a_mutation_has_an_idempotency_key(
    key: str, sent: str | None
) -> None:
    """A request that was sent twice by accident then has one effect."""
    seen: list[httpx.Headers] = []

    def record(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers)
        return job("completed")

    with answering(record, key) as client:
        client.call(CREATE_JOB, body=m.NoteRequest(text="t"))
        client.call(GET_JOB, path={"job_id": JOB.id})
    assert [headers.get("Authorization") for headers in seen] == [sent] * 2
    assert "Idempotency-Key" in seen[0]
    assert "Idempotency-Key" not in seen[1]


@pytest.mark.parametrize("key", ["with\nline", "schlüssel\N{EURO SIGN}"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(CliError, match="KB_API_KEY") as refused:
        EngineClient("http://engine:8000", key)
    assert refused.value.status is Exit.USAGE
    assert key not in refused.value.message


@pytest.mark.parametrize(
    ("operation", "content", "sent"),
    [
        (
            GET_DOCUMENT,
            {"path": {"document_id": "../jobs?x=1#"}, "query": DocumentQuery(chunks=False)},
            "/documents/..%2Fjobs%3Fx%3D1%23?chunks=false",
        ),
        (
            LIST_DOCUMENTS,
            {"query": DocumentsQuery(source_path="a b", limit=5)},
            "/documents?limit=5&source_path=a%20b",
        ),
    ],
)
def test_a_path_parameter_keeps_its_place_and_a_query_holds_what_differs_from_the_defaults(
    operation: AnyOperation, content: dict[str, Any], sent: str
) -> None:
    urls: list[str] = []

    def record(request: httpx.Request) -> httpx.Response:
        urls.append(request.url.raw_path.decode().replace("+", "%20"))
        return problem("invalid_parameter")

    with answering(record) as client, pytest.raises(CliError):
        client.call(operation, **content)
    assert urls == [f"/api/v1{sent}"]


def test_a_file_is_sent_with_its_fields_as_the_contract_has_them() -> None:
    bodies: list[bytes] = []

    def record(request: httpx.Request) -> httpx.Response:
        bodies.append(request.read())
        return httpx.Response(202, content=msgspec.json.encode(JOB))

    fields = m.FileFields(tags=["collection:documents"], dedup_scope="collection:documents")
    with answering(record) as client:
        client.send_file("a.txt", io.BytesIO(b"content"), fields)
    [body] = bodies
    assert b'name="tags"\r\n\r\n["collection:documents"]\r\n' in body
    assert b'name="dedup_scope"\r\n\r\ncollection:documents\r\n' in body
    assert b'name="file"; filename="a.txt"' in body
    assert b"\r\n\r\ncontent\r\n" in body


def test_a_job_is_asked_for_until_it_has_ended() -> None:
    states: list[m.JobStatus] = ["queued", "running", "completed"]
    waits: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        waits.append(request.url.params["wait"])
        return job(states.pop(0))

    ticks = iter(range(0, 1_000, 20))
    with answering(answer) as client:
        assert client.wait_for_job(JOB.id, clock=lambda: float(next(ticks))).status == "completed"
    assert waits == [json.dumps(WAIT_SECONDS)] * 3


def test_a_request_goes_to_the_first_engine_that_accepts_a_connection() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host == "away":
            raise httpx.ConnectError("refused")
        return job("completed")

    with EngineClient("http://away,http://here/", transport=httpx.MockTransport(answer)) as client:
        for _ in range(2):
            client.send_file("a.txt", io.BytesIO(b"granite"), m.FileFields())
    assert asked == ["away", "here", "here"]
    with (
        EngineClient("http://away,http://away", transport=httpx.MockTransport(answer)) as client,
        pytest.raises(CliError, match="no engine answers at http://away,http://away"),
    ):
        client.call(GET_STATUS)
