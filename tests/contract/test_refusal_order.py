"""Requests with two faults: which of the two an implementation reports.

Each operation below has its faults in the order in which they are reported: of each pair, the first one wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from kb_contracts.api.ragler import LIMITS
from kb_http.requests import JSON_BODY_BYTES
from tests.support.engines import client_of, engine, simulator
from tests.support.eventually import eventually

Sending = dict[str, Any]
"""The arguments of httpx for a request; `text` and `padding` make its body."""
Fault = Callable[[Sending], None]
Faults = Mapping[str, tuple[Fault, tuple[str, str | None]]]
"""Faults by name, each with the code of its refusal and the parameter that the refusal names."""

_numbers = count()


class Side:
    """An implementation with one note, whose RAGLer searches are limited to one for each user."""

    def __init__(self, name: str, http: httpx.Client) -> None:
        self.name = name
        self._http = http
        job = http.post("/api/v1/jobs", json={"text": "Ferries sail on Mondays."}).json()
        url = f"/api/v1/jobs/{job['id']}?wait=30"
        self.note = eventually(lambda: http.get(url).json()["document_id"], what="the note")

    def sent(self, sending: Sending) -> httpx.Response:
        body = sending.pop("text") + " " * sending.pop("padding", 0)
        return self._http.request(**sending, content=body.encode())

    def search(self) -> Sending:
        headers = {"Content-Type": "application/json", "X-User-ID": f"user-{next(_numbers)}"}
        return {"method": "POST", "url": "/vector/search", "headers": headers, "text": '{"query": "ferries"}'}

    def patch(self) -> Sending:
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"key-{next(_numbers)}"}
        url = f"/api/v1/notes/{self.note}"
        return {"method": "PATCH", "url": url, "headers": headers, "text": '{"title": "Sailings"}'}

    def refusal(self, sending: Sending) -> tuple[str, str | None]:
        """Send a request, after one that uses up the user's limit or the key if `sending` repeats it."""
        if sending.pop("spends_limit", False):
            first = self.search()
            first["headers"]["X-User-ID"] = sending["headers"]["X-User-ID"]
            assert self.sent(first).status_code == 200
        if sending.pop("reuses_key", False):
            first = self.patch()
            first["headers"]["Idempotency-Key"] = sending["headers"]["Idempotency-Key"]
            first["text"] = '{"title": "Departures"}'
            assert self.sent(first).status_code == 200
        problem = self.sent(sending).json()
        return problem["code"], problem.get("parameter")


@pytest.fixture(scope="module", params=["engine", "simulator"])
def side(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    home: Path = tmp_path_factory.mktemp("refusals")
    starting = engine(home) if request.param == "engine" else simulator()
    with pytest.MonkeyPatch.context() as patch, starting as url:
        patch.setitem(LIMITS, "vectorSearch", 1)
        with client_of(url) as http:
            yield Side(request.param, http)


def header(name: str, value: str) -> Fault:
    return lambda sending: sending["headers"].__setitem__(name, value)


def member(**members: Any) -> Fault:
    return lambda sending: sending.update(members)


def text(old: str, new: str) -> Fault:
    return lambda sending: sending.update(text=sending["text"].replace(old, new, 1))


def broken_coding(sending: Sending) -> None:
    """The rest of such a body cannot be read, so it ends its connection."""
    sending["headers"].update({"Content-Encoding": "gzip", "Connection": "close"})


TOKEN: Faults = {
    "target": (member(extensions={"target": b"http://other.example/"}), ("invalid_request", None)),
    "token": (header("Authorization", "Bearer wrong"), ("unauthorized", None)),
}
CALLER: Faults = {
    "access header": (header("X-KB-Access", "{"), ("invalid_parameter", "X-KB-Access")),
    "role header": (header("X-User-Role", "r" * 300), ("invalid_parameter", "X-User-Role")),
}
BODY: Faults = {
    "media type": (header("Content-Type", "text/plain"), ("unsupported_media_type", None)),
    "coding": (broken_coding, ("invalid_request", None)),
    "size": (member(padding=JSON_BODY_BYTES), ("payload_too_large", None)),
    "malformed": (text("{", "{{"), ("invalid_request", None)),
    "member": (text('"}', '", "yy": 1}'), ("unknown_parameter", "yy")),
}
SEARCH: Faults = {
    **TOKEN,
    "path": (member(url="/vector/searches"), ("route_not_found", None)),
    "method": (member(method="PATCH"), ("method_not_allowed", None)),
    **CALLER,
    "right": (header("X-KB-Access", '{"rights": ["write"]}'), ("forbidden", None)),
    "query": (member(params={"zz": "1"}), ("unknown_parameter", "zz")),
    "user header": (header("X-User-ID", "u" * 300), ("invalid_parameter", "X-User-ID")),
    **BODY,
    "rate": (member(spends_limit=True), ("rate_limited", None)),
    "collection": (
        text('"}', '", "collectionId": "00000000-0000-4000-8000-000000000000"}'),
        ("collection_not_found", None),
    ),
}
PATCH: Faults = {
    **TOKEN,
    **CALLER,
    "right": (header("X-KB-Access", '{"rights": ["read"]}'), ("forbidden", None)),
    "document id": (member(url="/api/v1/notes/x"), ("invalid_parameter", "document_id")),
    "query": (member(params={"zz": "1"}), ("unknown_parameter", "zz")),
    **BODY,
    "If-Match": (header("If-Match", "x"), ("invalid_parameter", "If-Match")),
    "key": (header("Idempotency-Key", "k" * 300), ("invalid_parameter", "Idempotency-Key")),
    "reused key": (member(reuses_key=True), ("idempotency_mismatch", None)),
    "scope": (header("X-KB-Access", '{"reach": {"tags": ["collection:a"]}}'), ("document_not_found", None)),
    "version": (header("If-Match", "99"), ("version_conflict", None)),
}
EXCLUDED = [
    {"access header", "right"}, {"access header", "scope"}, {"right", "scope"}, {"reused key", "scope"},
    {"user header", "rate"}, {"If-Match", "version"}, {"key", "reused key"}, {"coding", "size"},
]  # fmt: skip
"""Pairs that no request can have, since both are values of one header, or that break its connection off."""


def order(faults: Faults, side: str) -> list[str]:
    """Return the names in the order of reports; the simulator reads the body, for its journal, beforehand."""
    names = list(faults)
    if side == "simulator":
        for name in ("size", "coding"):
            names.remove(name)
            names.insert(names.index("token") + 1, name)
    return names


@pytest.mark.parametrize("first", SEARCH)
def test_of_two_faults_of_a_search_the_earlier_one_is_reported(side: Side, first: str) -> None:
    check_pairs(side, SEARCH, side.search, first)


@pytest.mark.parametrize("first", PATCH)
def test_of_two_faults_of_a_change_the_earlier_one_is_reported(side: Side, first: str) -> None:
    check_pairs(side, PATCH, side.patch, first)


def check_pairs(side: Side, faults: Faults, plain: Callable[[], Sending], first: str) -> None:
    names = order(faults, side.name)
    seconds = [name for name in names[names.index(first) :] if {first, name} not in EXCLUDED]
    reported = {}
    for second in seconds:
        sending = plain()
        for name in {first: 0, second: 0}:
            faults[name][0](sending)
        reported[second] = side.refusal(sending)
    assert reported == dict.fromkeys(seconds, faults[first][1])
