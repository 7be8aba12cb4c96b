"""A client of the engine API for behaviour tests, with short names for frequent requests."""

from __future__ import annotations

from typing import Any

import httpx

from kb_contracts.api.errors import ERRORS, PROBLEM_JSON
from tests.support.eventually import eventually_async

Json = dict[str, Any]


class Caller:
    """Uses HTTP only, so that any implementation of the API can be tested."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def submit(self, text: str, **body: Any) -> Json:
        return answered(await self.http.post("/api/v1/jobs", json={"text": text, **body}), 202)

    async def send(
        self, name: str, data: bytes, headers: dict[str, str] | None = None, **fields: str
    ) -> Json:
        """Submit a file; return the accepted job."""
        response = await self.http.post(
            "/api/v1/jobs", files={"file": (name, data)}, data=fields, headers=headers
        )
        return answered(response, 202)

    async def job(self, job_id: str, wait: float = 0) -> Json:
        return answered(await self.http.get(f"/api/v1/jobs/{job_id}", params={"wait": wait}))

    async def ended(self, job: Json) -> Json:
        return await eventually_async(
            lambda: self.job(job["id"], wait=30),
            lambda seen: seen["status"] in {"completed", "failed", "cancelled"},
            what="the end of the job",
        )

    async def completed(self, job: Json) -> int:
        ended = await self.ended(job)
        assert ended["status"] == "completed", ended
        return int(ended["document_id"])

    async def started(self, job: Json) -> Json:
        seen: Json = await eventually_async(
            lambda: self.job(job["id"]), lambda seen: seen["status"] != "queued", what="the start of the job"
        )
        assert seen["status"] == "running", seen
        return seen

    async def note(self, text: str, **body: Any) -> int:
        """Ingest a note; return the id of its document."""
        return await self.completed(await self.submit(text, **body))

    async def file(self, name: str, data: bytes, **fields: str) -> int:
        """Ingest a file; return the id of its document."""
        return await self.completed(await self.send(name, data, None, **fields))

    async def search(self, query: str, **body: Any) -> Json:
        return answered(await self.http.post("/api/v1/search", json={"query": query, **body}))

    async def found(self, query: str, **body: Any) -> list[int]:
        """Return the ids of the documents that a keyword search finds, best first."""
        answer = await self.search(query, **{"mode": "fts", **body})
        return [result["document"]["id"] for result in answer["results"]]

    async def document(self, key: int | str, **query: Any) -> Json:
        return answered(await self.http.get(f"/api/v1/documents/{key}", params=query))

    async def documents(self, **query: Any) -> Json:
        return answered(await self.http.get("/api/v1/documents", params=query))

    async def patch(self, key: int, **body: Any) -> httpx.Response:
        return await self.http.patch(f"/api/v1/notes/{key}", json=body)

    async def status(self) -> Json:
        return answered(await self.http.get("/api/v1/status"))


def answered(response: httpx.Response, status: int = 200) -> Json:
    assert response.status_code == status, response.text
    return dict(response.json())


def problem(response: httpx.Response, code: str) -> Json:
    """Return the problem document of a response, which must be this error in the contract's form."""
    body = dict(response.json())
    assert body["code"] == code, body
    assert response.headers["Content-Type"].split(";")[0] == PROBLEM_JSON
    assert response.status_code == body["status"] == ERRORS[code].status
    assert body["detail"]
    return body
