"""Access to documents by caller, operation and collection: measured on an engine, written as a table.

    python -m tests.contract.access_matrix      write the tables into docs/access-reference.md

Each caller tries each operation on a document of its own collection, of another one and of no collection. The
outcome is `own`, `all` or `-`. `test_access_matrix.py` compares the page with the outcomes.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any
from uuid import uuid4

import httpx
import msgspec

from kb_contracts.access.reach import ACCESS, RIGHTS, Access, Reach, Right, access_header
from kb_contracts.api import operations as ops
from kb_contracts.api import ragler as r
from kb_verify.client import Client
from kb_verify.files import pdf
from tests.support.engines import client_of, engine
from tests.support.twins import attempts

PAGE = Path(__file__).parents[2] / "docs" / "access-reference.md"
OWN, OTHER = "own", "other"
PLACES: Mapping[str, Sequence[str]] = {
    OWN: ["collection:own"],
    OTHER: ["collection:other"],
    "no collection": [],
}


def _key(*rights: Right, reaches_all: bool = False) -> dict[str, str]:
    reach = None if reaches_all else Reach(frozenset(PLACES[OWN]))
    return {ACCESS: access_header(Access(" ".join(rights), frozenset(rights), reach))}


CALLERS: Mapping[str, dict[str, str]] = {
    "read": _key("read"),
    "read, write": _key("read", "write"),
    "read, write, delete": _key("read", "write", "delete"),
    "all rights": _key(*sorted(RIGHTS)),
    "read, every collection": _key("read", reaches_all=True),
    "role `service`": {r.USER_ROLE: r.SERVICE},
    "the engine's key": {},
}
"""Additional headers of each caller; callers named by rights alone are limited to one collection."""


@dataclass
class Trial:
    """A base with a document in each place, and one caller of it."""

    admin: Client
    caller: Client
    ids: dict[str, int]
    jobs: dict[str, str]
    files: dict[str, int]
    """The files, which are only read: each is sent once for all callers."""

    def fresh(self, place: str) -> int:
        """Add a document in this place, with an earlier version, and return its id."""
        text, tags = f"granite {uuid4()}", list(PLACES[place])
        document = self.admin.note(text, tags=tags, source_path=text, dedup_scope=place)
        self.admin.patched(document, text=f"basalt {uuid4()}")
        return document


Try = Callable[[Trial, str], httpx.Response | bool]


def _on(operation: ops.AnyOperation, *path: object, **request: Any) -> Try:
    return lambda trial, place: trial.caller.request(operation, trial.fresh(place), *path, **request)


def _listed(operation: ops.AnyOperation, members: str, name: str, **request: Any) -> Try:
    """True if the listed entries include the document."""

    def look(trial: Trial, place: str) -> httpx.Response | bool:
        response = trial.caller.request(operation, **request)
        if response.status_code == 403:
            return response
        return trial.ids[place] in [_member(each, name) for each in response.json()[members]]

    return look


def _member(value: Any, name: str) -> Any:
    for part in name.split("."):
        value = value[part]
    return value


def _job(operation: ops.AnyOperation) -> Try:
    return lambda trial, place: trial.caller.request(operation, trial.jobs[place])


def _unsourced(trial: Trial, place: str) -> httpx.Response:
    document = trial.fresh(place)
    path = trial.admin.call(ops.GET_DOCUMENT, document).source_path
    return trial.caller.request(ops.REMOVE_SOURCE, document, params={"source_path": path})


def _tags(trial: Trial, place: str) -> httpx.Response | bool:
    response = trial.caller.request(ops.LIST_TAGS)
    named = {each["tag"]: each["documents"] for each in response.json().get("tags", ())}
    return response if response.status_code == 403 else f"of {place}" in named


def _status(trial: Trial, place: str) -> httpx.Response | bool:
    response = trial.caller.request(ops.GET_STATUS)
    total = trial.admin.call(ops.LIST_DOCUMENTS).total
    return response.json()["documents"]["total"] == total or place == OWN


def _trash(trial: Trial, place: str) -> httpx.Response | bool:
    gone = trial.fresh(place)
    trial.admin.call(ops.DELETE_DOCUMENT, gone)
    response = trial.caller.request(ops.LIST_TRASH)
    return gone in [each["document_id"] for each in response.json().get("versions", ())]


def _submit(trial: Trial, place: str) -> httpx.Response:
    return trial.caller.request(ops.CREATE_JOB, json={"text": f"new {uuid4()}", "tags": list(PLACES[place])})


def _of_file(operation: ops.AnyOperation) -> Try:
    def look(trial: Trial, place: str) -> httpx.Response:
        if place not in trial.files:
            data = pdf([f"granite of {place} " * 9])  # enough letters, so that no OCR is tried
            tags = msgspec.json.encode(PLACES[place]).decode()
            trial.files[place] = trial.admin.file("a.pdf", data, tags=tags)
        return trial.caller.request(operation, trial.files[place])

    return look


def _cited(trial: Trial, place: str) -> bool:
    uid = trial.admin.call(ops.GET_DOCUMENT, trial.ids[place]).uid
    quote = {"document": uid, "version": 1, "start": 0, "end": 3, "begins": "gra", "hash": "0" * 32}
    response = trial.caller.request(ops.CHECK_CITATION, json=quote)
    return response.status_code == 200 and response.json()["status"] != "gone"


def _collection(operation: ops.AnyOperation, **request: Any) -> Try:
    def look(trial: Trial, place: str) -> httpx.Response | bool:
        if place not in (OWN, OTHER):
            return True
        body = {"json": {"name": place}} if operation is ops.PUT_COLLECTION else request
        return trial.caller.request(operation, r.collection_id(place), **body)

    return look


def _collections(trial: Trial, place: str) -> bool:
    names = {each["name"] for each in trial.caller.request(ops.LIST_COLLECTIONS).json()["collections"]}
    return place in names or place not in (OWN, OTHER)


def _vector(trial: Trial, place: str) -> httpx.Response | bool:
    if place not in (OWN, OTHER):
        return True
    return trial.caller.request(ops.VECTOR_SEARCH, json={"query": "granite", "collectionName": place})


TRIES: Mapping[str, Try] = {
    ops.SEARCH.id: _listed(ops.SEARCH, "results", "document.id", json={"query": "first granite", "top": 100}),
    ops.CHECK_CITATION.id: _cited,
    ops.CREATE_JOB.id: _submit,
    ops.LIST_JOBS.id: _listed(ops.LIST_JOBS, "jobs", "document_id", params={"limit": 1000}),
    ops.GET_JOB.id: _job(ops.GET_JOB),
    ops.CANCEL_JOB.id: _job(ops.CANCEL_JOB),
    ops.RETRY_JOB.id: _job(ops.RETRY_JOB),
    ops.LIST_DOCUMENTS.id: _listed(ops.LIST_DOCUMENTS, "documents", "id", params={"limit": 1000}),
    ops.GET_DOCUMENT.id: _on(ops.GET_DOCUMENT),
    ops.GET_ORIGINAL.id: _of_file(ops.GET_ORIGINAL),
    ops.GET_PICTURE.id: _of_file(ops.GET_PICTURE),
    ops.DELETE_DOCUMENT.id: _on(ops.DELETE_DOCUMENT),
    ops.REMOVE_SOURCE.id: _unsourced,
    ops.LIST_VERSIONS.id: _on(ops.LIST_VERSIONS),
    ops.GET_VERSION.id: _on(ops.GET_VERSION, 1),
    ops.RESTORE_VERSION.id: _on(ops.RESTORE_VERSION, 1),
    ops.PURGE_VERSIONS.id: _on(ops.PURGE_VERSIONS),
    ops.LIST_TRASH.id: _trash,
    ops.PATCH_NOTE.id: lambda trial, place: trial.caller.request(
        ops.PATCH_NOTE, trial.fresh(place), json={"text": f"patched {uuid4()}"}
    ),
    ops.SET_METADATA.id: _on(ops.SET_METADATA, json={"metadata": {"a": 1}}),
    ops.GIVE_FEEDBACK.id: _on(ops.GIVE_FEEDBACK, json={"signal": "useful"}),
    ops.ADD_TAGS.id: _on(ops.ADD_TAGS, json={"tags": ["new"]}),
    ops.REMOVE_TAG.id: lambda trial, place: trial.caller.request(
        ops.REMOVE_TAG, _tagged(trial, place), "new"
    ),
    ops.LIST_TAGS.id: _tags,
    ops.GET_STATUS.id: _status,
    ops.VECTOR_SEARCH.id: _vector,
    ops.LIST_COLLECTIONS.id: _collections,
    ops.GET_COLLECTION.id: _collection(ops.GET_COLLECTION),
    ops.PUT_COLLECTION.id: _collection(ops.PUT_COLLECTION),
    ops.CLEAR_DOCUMENTS.id: lambda trial, _place: trial.caller.request(
        ops.CLEAR_DOCUMENTS, params={"confirm": "true"}
    ),
}  # fmt: skip
"""The attempts for each operation; the last one leaves nothing for further attempts."""

_FOUND = frozenset({200, 202, 409})
"""Status codes for a found document; 409 is for an ended job, which cannot be cancelled or retried."""


def _tagged(trial: Trial, place: str) -> int:
    document = trial.fresh(place)
    trial.admin.call(ops.ADD_TAGS, document, json={"tags": ["new"]})
    return document


def outcome(trial: Trial, each: Try) -> str:
    """Return `all`, `own` or `-`."""
    done = []
    for place in PLACES:
        found = each(trial, place)
        if isinstance(found, httpx.Response):
            assert found.status_code in {*_FOUND, 403, 404}, found.text
            found = found.status_code in _FOUND
        if found:
            done.append(place)
    if len(done) == len(PLACES):
        return "all"
    # An operation on a collection cannot be tried on a document without one.
    return (
        "own" if OWN in done and OTHER not in done else "-" if OWN not in done and OTHER not in done else "?"
    )


def rows(url: str) -> Iterator[list[str]]:
    """Yield the rows of the table: the operation, its right, and the outcome for each caller."""
    with _trials(url) as trials:
        for id_, each in TRIES.items():
            outcomes = [outcome(trial, each) for trial in trials]
            yield [f"`{id_}`", ops.BY_ID[id_].right, *outcomes]


@contextmanager
def _trials(url: str) -> Iterator[list[Trial]]:
    with ExitStack() as stack:

        def client(headers: dict[str, str]) -> Client:
            return Client(stack.enter_context(client_of(url, headers)))

        admin, ids, jobs = client({}), {}, {}
        files: dict[str, int] = {}
        for place, tags in PLACES.items():
            job = admin.submit(f"first granite of {place}", tags=[*tags, f"of {place}"], dedup_scope=place)
            ids[place], jobs[place] = admin.completed(job), job.id
        yield [Trial(admin, client(headers), ids, jobs, files) for headers in CALLERS.values()]


def table(found: Sequence[Sequence[str]]) -> str:
    lines = [["Operation", "Right", *CALLERS], ["---"] * (2 + len(CALLERS)), *found]
    return (
        "".join(f"| {' | '.join(line)} |\n" for line in lines)
        .replace("| --- ", "|---")
        .replace("--- |", "---|")
    )


def attempts_made() -> str:
    """The number of attempts beyond an access scope for each operation, as shown in the page."""
    counted = Counter(each.operation.id for each in attempts())
    lines = wrap(", ".join(f"{id_} {count}" for id_, count in sorted(counted.items())), 118)
    return f"**{counted.total()}**: " + "\n".join(lines) + ".\n"


def written(text: str, found: Sequence[Sequence[str]]) -> str:
    """Return the page with these tables in it."""
    for name, content in (("matrix", table(found)), ("attempts", attempts_made())):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        assert pattern.search(text), f"the page has no place for the {name}"
        text = pattern.sub(f"{begin}{content}{end}".replace("\\", r"\\"), text)
    return text


def main() -> int:
    with TemporaryDirectory() as home, engine(Path(home)) as url:
        PAGE.write_text(written(PAGE.read_text("utf-8"), list(rows(url))), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
