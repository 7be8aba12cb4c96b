"""A history played on one side: answers decoded by their models, and normalised with identities preserved."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.content import OCTETS
from kb_contracts.api.errors import Problem
from kb_contracts.api.operations import BY_ID
from tests.parity.history import IDS, Given, Step

_UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z$")
_HEADERS = ("Content-Type", "Content-Disposition", "ETag", "Allow", "WWW-Authenticate")
_CHUNKS = frozenset({"chunk", "chunks", "before", "after"})
_COLLECTIONS = frozenset(IDS)
_ABSENT = "00000000-0000-4000-8000-00000000ffff"


@dataclass(frozen=True)
class Played:
    """The answer to a step, ready for comparison."""

    step: Step
    asked: str
    answer: dict[str, Any]


class Side:
    """One of the two sides, and the names of the values that it has returned so far."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self.jobs: dict[int, str] = {}
        self.documents: dict[int, tuple[int, str]] = {}
        self._names: dict[str, dict[Any, str]] = defaultdict(dict)

    def play(self, steps: list[Step]) -> list[Played]:
        return [played for step in steps for played in self._play(step)]

    def _play(self, step: Step) -> list[Played]:
        response = self._send(step)
        played = [self._played(step, response)]
        if step.slot is not None and response.status_code == 202:
            job = msgspec.json.decode(response.content, type=m.Job)
            waiting = Step("getJob", {"job_id": job.id}, {"params": {"wait": 30}})
            ended = self._send(waiting)
            self._remember(step.slot, msgspec.json.decode(ended.content, type=m.Job))
            played.append(self._played(Step("getJob", {"job_id": Given("job", step.slot)}), ended))
        return played

    def _send(self, step: Step) -> httpx.Response:
        request = self._resolved(step.request)
        request["headers"] = {name: str(value) for name, value in request.get("headers", {}).items()}
        if step.method:
            return self._http.request(step.method, step.path, **request)
        operation = BY_ID[step.operation]
        place = {name: quote(str(part), safe="") for name, part in self._resolved(step.place).items()}
        return self._http.request(operation.method, operation.path.format(**place), **request)

    def _remember(self, slot: int, job: m.Job) -> None:
        self.jobs[slot] = job.id
        if job.document_id is not None and job.document_uid is not None:
            self.documents[slot] = (job.document_id, job.document_uid)

    def _resolved(self, value: Any) -> Any:
        match value:
            case Given():
                return self._given(value)
            case dict():
                return {key: self._resolved(part) for key, part in value.items()}
            case _:
                return value

    def _given(self, wanted: Given) -> Any:
        document, uid = self.documents.get(wanted.slot, (9_000_000_000, _ABSENT))
        match wanted.kind:
            case "document":
                return document
            case "uid":
                return uid
            case "job":
                return self.jobs[wanted.slot]
            case _:
                return self._version(document) + (7 if wanted.kind == "stale version" else 0)

    def _version(self, document: int) -> int:
        response = self._http.get(f"/api/v1/documents/{document}", params={"chunks": "false"})
        return int(response.json().get("version", 1))

    # comparison

    def _played(self, step: Step, response: httpx.Response) -> Played:
        is_file = response.headers["Content-Type"] == OCTETS
        body = {"file": response.text} if is_file else response.json()
        if not is_file:
            _fits(step, response)
        answer: dict[str, Any] = {
            "status": response.status_code,
            "headers": {name: response.headers.get(name) for name in _HEADERS},
            "waits": "Retry-After" in response.headers,
            "body": self._seen(step, body) if response.is_success else self._named(body),
        }
        return Played(step, f"{step.operation} {step.path}{step.place} {step.request}"[:400], answer)

    def _seen(self, step: Step, body: Any) -> Any:
        if step.operation == "vectorSearch":
            return self._found(step, body)
        return self._searched(step, body) if step.operation == "search" else self._named(body)

    def _found(self, step: Step, body: dict[str, Any]) -> dict[str, Any]:
        """Reduce a vector search to the set of its passages if it is complete, or to their number.

        The number of hits depends on the model of each side, up to the number of passages.
        """
        results, limit = body["results"], step.request["json"]["limit"]
        scores = [result.pop("score") for result in results]
        seen: dict[str, Any] = {
            "members": sorted(body),
            "query": body["query"],
            "best first": scores == sorted(scores, reverse=True),
            "count": len(results),
        }
        if len(results) < limit:
            results.sort(key=lambda result: (result["content"], str(result["metadata"]["tags"])))
            seen |= {"results": self._named(results), "counted": body["total"] <= len(results)}
        return seen

    def _searched(self, step: Step, body: dict[str, Any]) -> dict[str, Any]:
        """Reduce a keyword search to its set of documents, and other searches to mode and filters."""
        asked = step.request["json"]
        results = body["results"]
        scores = [result["score"] for result in results]
        seen: dict[str, Any] = {
            "mode": body["mode"],
            "members": sorted(body),
            "best first": scores == sorted(scores, reverse=True),
            "filtered": all(_passes(asked, result) for result in results),
            "explained": all((each["explain"] is not None) is bool(asked.get("explain")) for each in results),
        }
        if body["mode"] == "fts":
            found = {self._name("document", each["document"]["id"]): each for each in results}
            same = [twin["document_id"] for each in results for twin in each.get("duplicates", ())]
            seen |= {"matched": sorted({*found, *(self._name("document", each) for each in same)})}
            seen |= {"total": body["total"]}
            if not same:  # otherwise each side may have kept a different one
                seen["tags"] = {name: each["tags"] for name, each in found.items()}
        return seen

    def _named(self, value: Any, inside: str = "") -> Any:
        match value:
            case dict():
                named = {key: self._member(key, part, inside) for key, part in value.items()}
                return named | _order_of_times(value)
            case list():
                return [self._named(part, inside) for part in value]
            case str() if value in _COLLECTIONS:
                return value
            case str() if _TIME.match(value):
                return "<time>"
            case str():
                return _UUID.sub(lambda uid: self._name("uid", uid[0]), value)
            case _:
                return value

    def _member(self, key: str, part: Any, inside: str) -> Any:
        if key in {"id", "document_id"} and isinstance(part, int):
            return self._name("chunk" if inside in _CHUNKS else "document", part)
        return self._named(part, key)

    def _name(self, kind: str, value: Any) -> str:
        names = self._names[kind]
        return names.setdefault(value, f"{kind} {len(names) + 1}")


def _fits(step: Step, response: httpx.Response) -> None:
    """Decode the answer by its model, which validates it."""
    kind = (
        BY_ID[step.operation].response_model if response.is_success and step.operation in BY_ID else Problem
    )
    msgspec.json.decode(response.content, type=kind)


def _order_of_times(value: dict[str, Any]) -> dict[str, Any]:
    if not {"created_at", "updated_at"} <= value.keys():
        return {}
    return {"updated_at": "<created>" if value["updated_at"] == value["created_at"] else "<later>"}


def _passes(asked: dict[str, Any], result: dict[str, Any]) -> bool:
    document, tags, filters = result["document"], set(result["tags"]), asked.get("filters") or {}
    prefix = filters.get("source_path_prefix")
    return (
        tags.issuperset(asked.get("tags", []))
        and (not asked.get("tags_any") or bool(tags.intersection(asked["tags_any"])))
        and asked.get("doc_type") in (None, document["doc_type"])
        and (prefix is None or (document["source_path"] or "").startswith(prefix))
        and ("format" not in filters or document["format"] in filters["format"])
        and (
            "source_type" not in filters or document["metadata"].get("source_type") in filters["source_type"]
        )
        and 0 <= result["score"] <= 1
    )
