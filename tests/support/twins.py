"""Two bases that differ only in documents outside the caller's access scope, and every request of the caller.

    both    the caller's documents, and hidden ones
    alone   the caller's documents only

The caller's responses must be the same in both, word for word, apart from generated values: ids are numbered
in the order in which they first appear, and times are left out. So no part of a response (status, totals,
order, scores, error texts) can depend on documents outside the access scope.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import httpx

from kb_contracts.access.reach import ACCESS, Access, Reach, access_header
from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.api import ragler as r
from kb_contracts.api.content import OCTETS
from kb_contracts.semantics.cursors import Place, cursor_after
from kb_verify.client import Client, fresh_user
from tests.support.contract_objects import response_with
from tests.support.patience import ANSWER_SECONDS

MINE, THEIRS, TEAM = "collection:mine", "collection:theirs", "team"
REACHES = {
    "a tag": Reach(frozenset([MINE])),
    "a prefix": Reach(prefixes=frozenset(["collection:mi"])),
    "a tag that is no collection": Reach(frozenset([MINE, TEAM])),
}
THEIR_ID = "5ae2f1f0-7d0c-4f44-9d3c-0f2e8f3b7a11"
"""ID of the description of the hidden collection."""
KEY = "a key that both have used"
GERMAN = (
    "Die Häuser der Siedlung wurden im letzten Jahrhundert errichtet, und die Bewohner pflegen ihre Gärten "
    "mit großer Sorgfalt. Granite und common stehen hier nur, damit auch danach gesucht werden kann."
)
_ABSENT = 9_000_000
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_DOCUMENT = re.compile(r"(?<=[Dd]ocument )\d+")
_TIMES = {
    *("created_at", "updated_at", "started_at", "finished_at", "kept_at", "expires_at", "last_updated"),
    *("last_published", "last_modified_at", "took_ms", "executionTime"),
    *("elapsed_seconds", "estimated_seconds"),
}


@dataclass
class Known:
    """Identifiers that a base gave to a document, its first chunk, and its job."""

    id: int
    uid: str
    chunk: int
    job: str
    citation: dict[str, Any]


def absent(label: str) -> Known:
    """Return identifiers that no base has given, for a document that only the other base has."""
    number = _ABSENT + len(label) * 100 + ord(label[-1])
    uid, job = str(uuid5(NAMESPACE_DNS, label)), str(uuid5(NAMESPACE_DNS, "job " + label))
    return Known(number, uid, number, job, _citation(uid, "common granite quartz"))


def _citation(uid: str, text: str) -> dict[str, Any]:
    return {
        "document": uid, "version": 1, "start": 0, "end": len(text), "begins": text[:20], "hash": "0" * 32
    }  # fmt: skip


@dataclass
class Side:
    """One base, with clients of its administrator and of the caller."""

    admin: Client
    caller: Client
    has_others: bool
    reach: Reach
    known: dict[str, Known] = field(default_factory=dict)
    cursor: str = ""
    _names: dict[str, dict[object, str]] = field(default_factory=dict)

    # the two populations

    def build(self) -> None:
        """Create the caller's documents, mixed with the hidden ones if there are any."""
        if self.has_others:
            self.admin.saved_collection(THEIR_ID, "theirs", description="hidden")
        self.note("h0", "common granite quartz", [THEIRS, "secret"], source_path="shared.md", title="Hidden")
        self.note("v0", "common granite mine", [MINE, "shared"], source_path="shared.md")
        self.note("h1", "common text of two", [THEIRS, "shared"], dedup_scope="free")
        self.note("v1", "common text of two, of a kind", [MINE], dedup_scope="free")
        self.note("v9", "common text of two", [MINE], dedup_scope="free")
        self.note("h2", "the same words", [THEIRS])
        self.note("v2", "the same words", [MINE])
        self.note("h3", "removed quartz", [THEIRS])
        self.note("v3", "removed marble", [MINE])
        self.note("h4", "moved basalt", [MINE], source_path="moved.md")
        self.note("h5", GERMAN, [THEIRS])
        self.note("h6", "secret of no collection", [])
        self.note("h9", "of another team", ["teams"], dedup_scope="free", source_path="free.md")
        self.file("h7", b"# Hidden\n\nquartz in a file\n", [THEIRS])
        self.file("v7", b"# Mine\n\nmarble in a file\n", [MINE])
        self.broken("h8", [THEIRS])
        self.broken("v8", [MINE])
        for label, text in (
            ("h0", "quartz again"),
            ("h0", "quartz"),
            ("v0", "granite again"),
            ("h4", "gone"),
        ):
            self._rewrite(label, text)
        for label in ("h3", "v3"):
            self.act(label, lambda kb, it: kb.call(ops.DELETE_DOCUMENT, it.id))
        for label in ("h0", "v0"):
            self.act(label, lambda kb, it: kb.call(ops.GIVE_FEEDBACK, it.id, json={"signal": "useful"}))
        if self.has_others:
            moved = self.known["h4"].id
            self.admin.call(ops.REMOVE_TAG, moved, MINE)
            self.admin.call(ops.ADD_TAGS, moved, json={"tags": [THEIRS]})
            self.admin.call(
                ops.CREATE_JOB,
                json={"text": "under a key", "tags": [THEIRS]},
                headers={"Idempotency-Key": KEY},
            )
        self.admin.saved_collection(r.collection_id("mine"), "mine", description="seen")
        self.known["none"] = absent("none")
        self.cursor = str(self.admin.search("common", top=1, pages=True).next_cursor)

    def _is_there(self, label: str) -> bool:
        if label.startswith("h") and not self.has_others:
            self.known[label] = absent(label)
            return False
        return True

    def _by(self, label: str) -> Client:
        """Return the client that adds a document: the caller adds its own."""
        return self.admin if label.startswith("h") else self.caller

    def note(self, label: str, text: str, tags: Sequence[str], **body: Any) -> None:
        if self._is_there(label):
            kb = self._by(label)
            scope = next((tag for tag in tags if tag.startswith("collection:")), "")
            self._learn(
                label,
                kb.submit(text, tags=list(tags), **{"dedup_scope": "" if label[1] == "2" else scope, **body}),
            )

    def file(self, label: str, data: bytes, tags: Sequence[str]) -> None:
        if self._is_there(label):
            self._learn(label, self._by(label).send("a.md", data, tags=_json(tags)))

    def broken(self, label: str, tags: Sequence[str]) -> None:
        if self._is_there(label):
            job = self._by(label).ended(self._by(label).send("a.pdf", b"%PDF-1.4 nothing", tags=_json(tags)))
            assert job.status == "failed"
            self.known[label] = Known(0, "", 0, job.id, {})

    def _learn(self, label: str, job: m.Job) -> None:
        ended = self.admin.ended(job)
        assert ended.status == "completed", ended
        assert not ended.deduplicated, f"{label} is somebody else's"
        document = self.admin.call(ops.GET_DOCUMENT, ended.document_id)
        citation = _citation(document.uid, document.chunks[0].text)
        self.known[label] = Known(document.id, document.uid, document.chunks[0].id, job.id, citation)

    def act(self, label: str, change: Callable[[Client, Known], object]) -> None:
        if self._is_there_already(label):
            change(self._by(label), self.known[label])

    def _rewrite(self, label: str, text: str) -> None:
        self.act(label, lambda kb, it: kb.patched(it.id, text=text))

    def _is_there_already(self, label: str) -> bool:
        return self.has_others or not label.startswith("h")

    def others(self) -> list[Any]:
        """Return the administrator's view of documents outside the access scope or in a hidden collection."""
        everything = {"limit": 1000}
        listed = self.admin.call(ops.LIST_DOCUMENTS, params={**everything, "sort_order": "asc"}).documents
        theirs = [each for each in listed if self._is_others(each.tags)]
        return [
            [self.admin.call(ops.GET_DOCUMENT, each.id, params={"text": "true"}) for each in theirs],
            [self.admin.call(ops.LIST_VERSIONS, each.id, params=everything).versions for each in theirs],
            [
                each
                for each in self.admin.call(ops.LIST_TRASH, params=everything).versions
                if self._is_others(each.tags)
            ],
            [
                (each.id, each.status)
                for each in self.admin.call(ops.LIST_JOBS, params=everything).jobs
                if self._is_others(each.tags)
            ],
            [each for each in self.admin.call(ops.LIST_COLLECTIONS).collections if each.name == "theirs"],
        ]

    def _is_others(self, tags: Sequence[str]) -> bool:
        return not (self.reach.admits(tags) and all(map(self.reach.may_change, tags)))

    # the responses

    def comparable(self, response: httpx.Response) -> Any:
        """The status, and the body without generated values."""
        is_file = response.headers["Content-Type"] == OCTETS
        return response.status_code, response.text if is_file else self._plain(response.json(), "")

    def _plain(self, value: Any, name: str) -> Any:
        if isinstance(value, dict):
            is_chunk = {"index", "heading", "start"} <= value.keys()
            kind = "chunk" if is_chunk else "document"
            plain: dict[str, Any] = {}
            for key, member in value.items():
                if key in _TIMES:
                    continue
                if key == "next_cursor":
                    plain[key] = member is not None
                elif key in ("id", "document_id", "chunk_id") and isinstance(member, int):
                    plain[key] = self._named("chunk" if key == "chunk_id" else kind, member)
                else:
                    plain[key] = self._plain(member, key)
            return plain
        if isinstance(value, list):
            return [self._plain(each, name) for each in value]
        if isinstance(value, str):
            value = _UUID.sub(lambda found: self._named("uuid", found[0]), value)
            return _DOCUMENT.sub(lambda found: self._named("document", int(found[0])), value)
        return value

    def _named(self, kind: str, value: object) -> str:
        names = self._names.setdefault(kind, {})
        return names.setdefault(value, f"{kind} {len(names)}")

    def forged_cursor(self, label: str, body: Mapping[str, Any]) -> str:
        """Return a cursor of the caller's own request that names another document's chunk."""
        request = m.SearchRequest(**{**body, "pages": True})
        answer = response_with(total=9)
        return cursor_after(request, answer, [[Place(self.known[label].chunk, 0.5)]], self.reach)


def _json(tags: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{tag}"' for tag in tags) + "]"


def _client(url: str, headers: Mapping[str, str]) -> httpx.Client:
    # Without loading certificates, a client is created in a hundredth of the time.
    return httpx.Client(base_url=url, headers=headers, timeout=ANSWER_SECONDS, verify=False)


@contextmanager
def sides(urls: Sequence[str], key: str, reach: Reach) -> Iterator[tuple[Side, Side]]:
    """Yield the sides "both" and "alone", by their base URLs; nothing is built yet."""
    clients = []
    try:
        made = []
        for url, has_others in zip(urls, (True, False), strict=True):
            admin = _client(url, {"Authorization": f"Bearer {key}"})
            narrow = {"Authorization": f"Bearer {key}", ACCESS: access_header(Access("caller", reach=reach))}
            caller = _client(url, narrow)
            clients += [admin, caller]
            made.append(Side(Client(admin), Client(caller), has_others, reach))
        yield made[0], made[1]
    finally:
        for client in clients:
            client.close()


# --- requests of the caller ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """One request of the caller; `request` returns the path and the arguments of httpx for a side."""

    operation: ops.AnyOperation
    what: str
    request: Callable[[Side], tuple[tuple[object, ...], dict[str, Any]]]

    def __repr__(self) -> str:
        return f"{self.operation.id}: {self.what}"

    def on(self, side: Side) -> list[Any]:
        """Return the response; for an accepted job, also the job at its end."""
        path, request = self.request(side)
        if self.operation.surface is ops.ApiSurface.RAGLER:
            request = {**request, "headers": {**fresh_user(), **request.get("headers", {})}}
        response = side.caller.request(self.operation, *path, **request)
        answers = [side.comparable(response)]
        if response.status_code == 202:
            job = side.caller.request(ops.GET_JOB, response.json()["id"], params={"wait": 30})
            # On one side, the job may have ended before the response was sent.
            answers = [(202, "accepted"), side.comparable(job)]
        return answers


DOCUMENTS = ("v0", "v1", "v2", "v3", "v7", "h0", "h1", "h3", "h4", "h6", "h7", "h9", "none")
TAGS = (MINE, THEIRS, TEAM, "shared", "secret", "collection:mint", "nowhere")
QUERIES = (
    "common",
    "quartz",
    "granite",
    "marble again",
    "kinder",
    "the same words",
    '"common text"',
    "moved -basalt",
)


def attempts() -> list[Attempt]:
    """Return all attempts, first those that change nothing."""
    return [*_reading(), *_writing()]


def _of(operation: ops.AnyOperation, what: str, *path: object, **request: Any) -> Attempt:
    return Attempt(operation, what, lambda _side: (path, request))


def _named(
    operation: ops.AnyOperation, label: str, how: str, *path: object, what: str = "", **request: Any
) -> Attempt:
    """An attempt on a document, by its number or uid."""

    def ask(side: Side) -> tuple[tuple[object, ...], dict[str, Any]]:
        return (getattr(side.known[label], how), *path), request

    return Attempt(operation, f"{label} by {how} {what}".strip(), ask)


def _reading() -> Iterator[Attempt]:
    yield _of(ops.GET_STATUS, "")
    for status in (None, "completed", "failed"):
        yield _of(ops.LIST_JOBS, f"{status}", params={"status": status} if status else {})
    for prefix in ("", "collection:", "collection:t", "sec"):
        yield _of(ops.LIST_TAGS, prefix, params={"prefix": prefix})
    for sort in ("created_at", "title", "size_bytes"):
        yield _of(ops.LIST_DOCUMENTS, f"by {sort}", params={"sort_by": sort, "limit": 3, "offset": 1})
    for tag in TAGS:
        yield _of(ops.LIST_DOCUMENTS, tag, params={"tag": tag})
    for path in ("shared.md", "moved.md", "nowhere.md"):
        yield _of(ops.LIST_DOCUMENTS, path, params={"source_path": path})
        yield _of(ops.LIST_DOCUMENTS, f"{path[:3]}*", params={"source_path_prefix": path[:3]})
    yield _of(ops.LIST_TRASH, "")
    for query, mode in product(QUERIES, ("hybrid", "fts", "vector")):
        body = {"query": query, "mode": mode, "explain": True, "top": 5, "neighbors": 1}
        yield _of(ops.SEARCH, f"{mode} {query}", json=body)
    for tag in TAGS:
        yield _of(ops.SEARCH, f"with {tag}", json={"query": "common", "tags": [tag]})
        yield _of(ops.SEARCH, f"with any of {tag}", json={"query": "common", "tags_any": [tag, "x"]})
        yield _of(ops.VECTOR_SEARCH, tag, json={"query": "common", "filters": {"tags": [tag]}})
    members: list[dict[str, Any]] = [
        {"collapse": True}, {"min_score": 0.2}, {"ranking": {}}, {"filters": {"source_path_prefix": "sh"}},
        {"filters": {"format": ["markdown"]}}, {"pages": True, "top": 1}, {"doc_type": "note"},
    ]  # fmt: skip
    for further in members:
        yield _of(ops.SEARCH, f"with {further}", json={"query": "common granite", **further})
    yield Attempt(
        ops.SEARCH,
        "another caller's cursor",
        lambda side: ((), {"json": {"query": "common", "top": 1, "pages": True, "cursor": side.cursor}}),
    )
    for label in ("v0", "h0", "h1", "h4", "none"):
        body = {"query": "common", "top": 1}

        def forged(side: Side, label: str = label, body: dict[str, Any] = body) -> Any:
            return (), {"json": {**body, "pages": True, "cursor": side.forged_cursor(label, body)}}

        yield Attempt(ops.SEARCH, f"a forged cursor to {label}", forged)
    for label in ("v0", "v7", "h0", "h7", "h4", "none"):

        def cited(side: Side, label: str = label) -> Any:
            return (), {"json": side.known[label].citation}

        yield Attempt(ops.CHECK_CITATION, label, cited)
    for name, id_ in _collections():
        yield _of(ops.GET_COLLECTION, name, id_)
        yield _of(ops.VECTOR_SEARCH, f"by id of {name}", json={"query": "common", "collectionId": id_})
    for name in ("mine", "theirs", "mint"):
        yield _of(ops.VECTOR_SEARCH, name, json={"query": "common", "collectionName": name})
    yield _of(ops.VECTOR_SEARCH, "everywhere", json={"query": "quartz"})
    yield _of(ops.LIST_COLLECTIONS, "")
    for label, how in product(DOCUMENTS, ("id", "uid")):
        yield _named(ops.GET_DOCUMENT, label, how, params={"text": "true", "similar": 5})
        yield _named(ops.GET_ORIGINAL, label, how)
        yield _named(ops.GET_PICTURE, label, how)
        yield _named(ops.LIST_VERSIONS, label, how)
        for version in (1, 2):
            yield _named(ops.GET_VERSION, label, how, version, what=f"in version {version}")
    for label in (*DOCUMENTS, "v8", "h8"):
        yield _named(ops.GET_JOB, label, "job", params={"wait": 0.01})


def _collections() -> tuple[tuple[str, str], ...]:
    derived = [(name, r.collection_id(name)) for name in ("mine", "theirs", "mint")]
    return (*derived, ("theirs as described", THEIR_ID))


def _writing() -> Iterator[Attempt]:
    yield _of(ops.CLEAR_DOCUMENTS, "", params={"confirm": "true"})
    for text, tags, scope in product(
        ("common granite quartz", "common text of two", "new words"),
        ([MINE], [THEIRS], [MINE, THEIRS], ["shared"], []),
        (THEIRS, "free", MINE, ""),
    ):
        body = {"text": text, "tags": tags, "dedup_scope": scope}
        yield _of(ops.CREATE_JOB, f"{text} {tags} {scope!r}", json=body)
    for path, scope in product(("shared.md", "moved.md"), (THEIRS, MINE, "free")):
        body = {"text": f"over {path} {scope}", "tags": [MINE], "source_path": path, "dedup_scope": scope}
        yield _of(ops.CREATE_JOB, f"{path} {scope!r}", json=body)
    for text, scope in product(("of another team", "of this team"), ("free", "", THEIRS)):
        body = {"text": text, "tags": [TEAM], "source_path": "free.md", "dedup_scope": scope}
        yield _of(ops.CREATE_JOB, f"free.md of {TEAM}: {text} {scope!r}", json=body)
    keyed = {"text": "under a key", "tags": [THEIRS]}
    yield _of(ops.CREATE_JOB, "another caller's request again", json=keyed, headers={"Idempotency-Key": KEY})
    yield _of(
        ops.CREATE_JOB,
        "another caller's key",
        json={**keyed, "tags": [MINE]},
        headers={"Idempotency-Key": KEY},
    )
    yield _of(
        ops.CREATE_JOB, "their file", files={"file": ("a.md", b"# Hidden\n\nquartz in a file\n")},
        data={"tags": _json([MINE])},
    )  # fmt: skip
    yield _of(
        ops.CREATE_JOB, "a file for them", files={"file": ("a.md", b"more")}, data={"tags": _json([THEIRS])}
    )
    for label in (*DOCUMENTS, "v8", "h8"):
        yield _named(ops.CANCEL_JOB, label, "job")
        yield _named(ops.RETRY_JOB, label, "job")
    for name, (of, id_) in product(("mine", "theirs", "mint"), _collections()):
        yield _of(ops.PUT_COLLECTION, f"{name} as {of}", id_, json={"name": name, "description": "tried"})
    for label in DOCUMENTS:
        yield _named(ops.PATCH_NOTE, label, "id", json={"text": f"common overwritten {label}"})
    for label, how in product(DOCUMENTS, ("uid", "id")):
        yield _named(ops.SET_METADATA, label, how, json={"metadata": {"tried": how}})
        yield _named(ops.GIVE_FEEDBACK, label, how, json={"signal": "useful"})
        for tag in TAGS:
            yield _named(ops.ADD_TAGS, label, how, what=tag, json={"tags": [tag]})
        for tag in ("secret", THEIRS, "nowhere", MINE):
            yield _named(ops.REMOVE_TAG, label, how, tag, what=tag)
        for add in (THEIRS, "collection:mint"):
            yield _named(ops.REMOVE_TAG, label, how, MINE, what=f"for {add}", params={"add": add})
        for path in ("shared.md", "moved.md"):
            yield _named(ops.REMOVE_SOURCE, label, how, what=path, params={"source_path": path})
        for version in (1, 2):
            yield _named(ops.RESTORE_VERSION, label, how, version, what=f"version {version}")
    for label in ("h0", "h3", "h4", "v3", "none", "v1"):
        yield _named(ops.DELETE_DOCUMENT, label, "uid")
        yield _named(ops.PURGE_VERSIONS, label, "uid")
        yield _named(ops.DELETE_DOCUMENT, label, "id", what="for good", params={"purge": "true"})
    yield from _after()


def _after() -> Iterator[Attempt]:
    """Lists and counts after all changes."""
    yield _of(ops.LIST_DOCUMENTS, "at the end", params={"limit": 1000})
    yield _of(ops.LIST_TRASH, "at the end")
    yield _of(ops.LIST_JOBS, "at the end", params={"limit": 1000})
    yield _of(ops.GET_STATUS, "at the end")
