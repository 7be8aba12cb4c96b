"""A history of operations, generated from a seed before any of them is answered.

Values of earlier answers are referred to by name: `Given("document", 3)` is the id of the document of the
third submission, whatever its number on either side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import Any, Literal

from faker import Faker

from kb_contracts.api.ragler import LIMITS, USER_ID, USER_ROLE, collection_id
from kb_contracts.semantics.search import quote_hash
from kb_verify.files import locked_pdf

_VOCABULARY = """
granite basalt marble quartz zircon feldspar slate chalk river harbour lantern copper ledger pension archive
copyist zebra falcon otter heron maple juniper bramble orchard kettle bicycle railway station compass voyage
winter meadow thunder glacier canyon desert monsoon violin trumpet sonata library museum
"""
WORDS = _VOCABULARY.split()
TAGS = ["stone", "water", "collection:memory", "collection:documents", "größe & co", "a"]
SCOPES = ["", "collection:memory", "collection:documents"]
NAMES = ["memory", "documents", "Field notes"]
IDS = [collection_id(name) for name in NAMES] + [f"00000000-0000-4000-8000-00000000000{n}" for n in range(3)]
"""Ids of collections: the derived ones, and some that a client may choose."""
PATHS = ["memory/a.md", "memory/b.md", "books/one.txt", "books/two.txt"]

Kind = Literal["document", "uid", "job", "version", "stale version", "note text"]


@dataclass(frozen=True)
class Given:
    """A value from the answers to submission `slot`."""

    kind: Kind
    slot: int


@dataclass(frozen=True)
class Step:
    """A request of an operation, or of `method` and `path` if it matches no operation."""

    operation: str
    place: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    method: str = ""
    path: str = ""
    slot: int | None = None
    """For a submission, its name in later references."""


class Story:
    """Generates the steps of a history."""

    def __init__(self, seed: int) -> None:
        self._dice = Random(seed)
        self._fake = Faker("en_US")
        self._fake.seed_instance(seed)
        self._slots = 0
        self._notes: list[int] = []
        self._files: list[int] = []
        self._texts: list[str] = []
        self._keys = 0
        self._users = 0

    def steps(self, count: int) -> Iterator[Step]:
        """Yield `count` random steps, and among them every refusal once."""
        for _ in range(6):
            yield from self._note()
        refused = refusals()
        every = max(1, count // len(refused))
        for number in range(count):
            yield from self._dice.choices(self._kinds, weights=self._weights)[0](self)
            if number % every == 0 and refused:
                yield refused.pop(0)
            if number == count // 2:
                yield Step("clearDocuments", request={"params": {"confirm": "true"}})
                yield Step("listCollections")
                yield Step("getStatus")
                yield from self._note()
                yield from overtaken(self._notes[-1])
        yield from refused
        yield from pairs_of_tags()
        yield Step("clearDocuments", request={"params": {"confirm": "true", "collections": "true"}})
        yield Step("listCollections")
        yield from limited()

    def _text(self) -> str:
        if self._texts and self._dice.random() < 0.2:
            return self._dice.choice(self._texts)
        sentences = [
            self._fake.sentence(nb_words=self._dice.randint(3, 9), ext_word_list=WORDS)
            for _ in range(self._dice.randint(1, 3))
        ]
        self._texts.append(" ".join(sentences))
        return self._texts[-1]

    def _some(self, pool: list[str], most: int) -> list[str]:
        return self._dice.sample(pool, self._dice.randint(0, most))

    def _new_slot(self) -> int:
        self._slots += 1
        return self._slots

    def _any_slot(self) -> int:
        return self._dice.choice(self._notes + self._files)

    def _key(self) -> dict[str, str]:
        self._keys += 1
        return {"Idempotency-Key": f"parity {self._keys}"}

    def _document(self) -> Given:
        return Given(self._dice.choice(("document", "uid")), self._any_slot())

    # kinds of steps

    def _note(self) -> Iterator[Step]:
        body: dict[str, Any] = {"text": self._text(), "tags": self._some(TAGS, 3)}
        if self._dice.random() < 0.5:
            body["title"] = self._fake.sentence(nb_words=3, ext_word_list=WORDS)
        if self._dice.random() < 0.3:
            body["metadata"] = {
                "author": self._fake.name(),
                "source_type": self._dice.choice(("web", "mail", 7)),
                "url": self._dice.choice(("https://example.com/", None)),
            }
        if self._dice.random() < 0.5:
            body["source_path"] = self._dice.choice(PATHS)
        body["dedup_scope"] = self._dice.choice(SCOPES)
        headers = self._key() if self._dice.random() < 0.3 else {}
        slot = self._new_slot()
        self._notes.append(slot)
        yield Step("createJob", request={"json": body, "headers": headers}, slot=slot)
        if headers:
            yield Step("createJob", request={"json": body, "headers": headers})
            yield Step("createJob", request={"json": {"text": "another"}, "headers": headers})

    def _file(self) -> Iterator[Step]:
        text, kind = self._text(), self._dice.choice(("txt", "md", "html", "svg"))
        data = {
            "md": f"# {text[:20]}\n\n{text}",
            "html": f"<html><body><p>{text}</p></body></html>",
            "svg": f"<svg><title>{text[:20]}</title><text>{text}</text></svg>",
        }
        name = f"{self._dice.choice(WORDS)}.{kind}"
        slot = self._new_slot()
        self._files.append(slot)
        fields = {"tags": '["stone"]', "source_path": self._dice.choice(PATHS), "title": text[:40]}
        request = {"files": {"file": (name, data.get(kind, text).encode())}, "data": fields}
        yield Step("createJob", request=request, slot=slot)

    def _read(self) -> Iterator[Step]:
        params = self._dice.choice(({}, {"chunks": "false"}, {"chunk_offset": 1}, {"chunk_limit": 1}))
        yield Step("getDocument", {"document_id": self._document()}, {"params": params})

    def _list(self) -> Iterator[Step]:
        params: dict[str, Any] = {
            "sort_by": self._dice.choice(
                ("id", "title", "filename", "created_at", "updated_at", "size_bytes")
            ),
            "sort_order": self._dice.choice(("asc", "desc")),
            "limit": self._dice.randint(1, 20),
            "offset": self._dice.randint(0, 6),
        }
        if self._dice.random() < 0.3:
            params["tag"] = self._dice.choice(TAGS)
        if self._dice.random() < 0.3:
            params["source_path"] = self._dice.choice(PATHS)
        if self._dice.random() < 0.2:
            params["source_path_prefix"] = self._dice.choice(("memory/", "books/"))
        if self._dice.random() < 0.2:
            params["doc_type"] = self._dice.choice(("note", "text", "markdown", "html"))
        yield Step("listDocuments", request={"params": params})

    def _search(self) -> Iterator[Step]:
        body: dict[str, Any] = {
            "query": " ".join(self._dice.sample(WORDS, self._dice.randint(1, 3))),
            "mode": self._dice.choice(("fts", "fts", "hybrid", "vector")),
            "top": 100,
        }
        for name, value in (
            ("tags", self._some(TAGS, 2)),
            ("tags_any", self._some(TAGS, 2)),
            ("doc_type", self._dice.choice(("note", "text"))),
            ("filters", {"source_path_prefix": self._dice.choice(("memory/", "books/"))}),
            ("filters", {"source_type": ["web"]}),
            ("filters", {"format": ["md", "txt"]}),
            ("explain", True),
            ("neighbors", 1),
            ("max_tokens", 1_000_000),
            ("collapse", True),
            ("per_document", 1),
            ("citations", True),
            ("detail", "locations"),
            ("ranking", self._dice.choice(({}, {"ranking_weights": {"semantic": 0.5, "feedback": 0.5}}))),
        ):
            if self._dice.random() < 0.15:
                body[name] = value
        if self._dice.random() < 0.4:
            body["query"] += self._syntax()
        yield Step("search", request={"json": body})

    def _syntax(self) -> str:
        """Return a phrase or an exclusion, with words that are adjacent in some text, or may be."""
        words = self._dice.choice(self._texts or ["granite quarry"]).split()
        start = self._dice.randrange(len(words))
        phrase = " ".join(words[start : start + self._dice.choice((1, 2, 2, 3))])
        made = self._dice.choice((' "{}"', " “{}”", ' -"{}"', ' "{} water"', " -{}", " --{}", ' "{}'))
        return made.format(phrase)

    def _citation(self) -> Iterator[Step]:
        """Yield a check of a text in a document: present in one, changed in another, removed with a third."""
        text, start = self._dice.choice(self._texts), self._dice.choice((0, 0, 3))
        citation = {
            "document": Given("uid", self._any_slot()),
            "version": 1,
            "start": start,
            "end": start + len(text),
            "begins": text[:9],
            "hash": quote_hash(text),
        }
        yield Step("checkCitation", request={"json": citation})

    def _patch(self) -> Iterator[Step]:
        slot = self._dice.choice(self._notes) if self._dice.random() < 0.9 else self._any_slot()
        body: dict[str, Any] = {"text": self._text()} if self._dice.random() < 0.7 else {}
        if not body or self._dice.random() < 0.3:
            body["title"] = self._fake.sentence(nb_words=3, ext_word_list=WORDS)
        if self._dice.random() < 0.4:
            body["expected_version"] = Given(self._dice.choice(("version", "stale version")), slot)
        yield Step("patchNote", {"document_id": Given("document", slot)}, {"json": body})

    def _tag(self) -> Iterator[Step]:
        slot = self._any_slot()
        headers = {"If-Match": Given(self._dice.choice(("version", "stale version")), slot)}
        request: dict[str, Any] = {"headers": headers} if self._dice.random() < 0.4 else {}
        place: dict[str, Any] = {"document_id": Given("document", slot)}
        if self._dice.random() < 0.6:
            tags = self._dice.sample(TAGS, self._dice.randint(1, 2))
            yield Step("addTags", place, {**request, "json": {"tags": tags}})
        else:
            yield Step("removeTag", {**place, "tag": self._dice.choice(TAGS)}, request)

    def _source(self) -> Iterator[Step]:
        params = {"source_path": self._dice.choice(PATHS)}
        yield Step("removeSource", {"document_id": self._document()}, {"params": params})

    def _feedback(self) -> Iterator[Step]:
        signal = self._dice.choice(("useful", "not_useful", "clicked"))
        request = {"json": {"signal": signal}, "headers": {USER_ID: self._dice.choice("abc")}}
        yield Step("giveFeedback", {"document_id": self._document()}, request)

    def _remove(self) -> Iterator[Step]:
        place, headers = {"document_id": self._document()}, self._key()
        yield Step("deleteDocument", place, {"headers": headers})
        yield Step("deleteDocument", place, {"headers": headers})
        yield Step("deleteDocument", place)

    def _past(self) -> Iterator[Step]:
        """Yield a step on one of the first versions, most of which were never replaced."""
        slot = self._any_slot()
        document = {"document_id": Given(self._dice.choice(("document", "uid")), slot)}
        place = {**document, "version": self._dice.choice((1, 1, 2, 2, 3, 4))}
        headers = {"If-Match": Given(self._dice.choice(("version", "stale version")), slot)}
        request = {"headers": headers} if self._dice.random() < 0.2 else {}
        yield self._dice.choice(
            (
                Step("listVersions", document),
                Step("getOriginal", document),
                Step("getPicture", document, {"params": {"chunk": 0}}),
                Step("listTrash", request={"params": {"limit": 5, "offset": self._dice.choice((0, 2))}}),
                Step("getVersion", place, {"params": {"text_offset": self._dice.choice((0, 5))}}),
                Step("restoreVersion", place, request),
                Step("restoreVersion", place, request),
                Step("purgeVersions", document),
                Step("deleteDocument", document, {"params": {"purge": "true"}}),
            )
        )

    def _look(self) -> Iterator[Step]:
        slot = self._any_slot()
        yield self._dice.choice(
            (
                Step("getStatus"),
                Step("getHealth"),
                Step("getReadiness"),
                Step("listTags", request={"params": {"prefix": self._dice.choice(("", "collection:"))}}),
                Step("listTags", request={"params": {"limit": 2, "offset": 1}}),
                Step("listJobs", request={"params": {"limit": 5}}),
                Step("listJobs", request={"params": {"status": "completed", "limit": 3, "offset": 2}}),
                Step("getJob", {"job_id": Given("job", slot)}),
                Step("cancelJob", {"job_id": Given("job", slot)}),
                Step("retryJob", {"job_id": Given("job", slot)}),
            )
        )

    def _user(self) -> dict[str, str]:
        """Return a new user for each step, so that no rate limit is reached."""
        self._users += 1
        return {USER_ID: f"parity {self._users}"}

    def _collection(self) -> Iterator[Step]:
        name = self._dice.choice(NAMES)
        id_ = collection_id(name) if self._dice.random() < 0.6 else self._dice.choice(IDS)
        place = {"collection_id": id_}
        if self._dice.random() < 0.5:
            yield Step("listCollections", request={"headers": self._user()})
            yield Step("getCollection", place, {"headers": self._user()})
            return
        body: dict[str, Any] = {"name": name, "description": self._text()}
        if self._dice.random() < 0.5:
            body["created_by"] = self._dice.choice(("ann@example.com", "bob@example.com"))
        if self._dice.random() < 0.5:
            body["target_audience"] = self._some(WORDS, 2)
        headers = {**self._user(), **self._dice.choice(({}, self._key(), {USER_ROLE: "service"}))}
        for _ in range(2):
            yield Step("putCollection", place, {"json": body, "headers": headers})

    def _vector(self) -> Iterator[Step]:
        body: dict[str, Any] = {"query": " ".join(self._dice.sample(WORDS, 2)), "limit": 100}
        for name, value in (
            ("collectionName", self._dice.choice(NAMES)),
            ("collectionId", self._dice.choice(IDS)),
            ("filters", {"source_type": self._dice.choice(("web", "manual"))}),
            ("filters", {"tags": self._dice.sample(TAGS, 2)}),
            ("filters", {"date_from": "2020-01-01", "date_to": "2999-01-01"}),
            ("filters", {"date_to": "2020-01-01"}),
            ("limit", 3),
            ("ranking", {}),
        ):
            if self._dice.random() < 0.2:
                body[name] = value
        yield Step("vectorSearch", request={"json": body, "headers": self._user()})

    _Kind = Callable[["Story"], Iterator[Step]]
    _kinds: tuple[_Kind, ...] = (
        _note,
        _file,
        _read,
        _list,
        _search,
        _citation,
        _patch,
        _tag,
        _source,
        _feedback,
        _remove,
        _past,
        _look,
        _collection,
        _vector,
    )
    _weights = (14, 8, 10, 10, 22, 10, 12, 12, 6, 8, 4, 16, 12, 12, 14)


def overtaken(slot: int) -> Iterator[Step]:
    """Yield changes of an existing note that expect another version, which random steps rarely produce."""
    place = {"document_id": Given("document", slot)}
    headers = {"If-Match": Given("stale version", slot)}
    expected = {"text": "never", "expected_version": Given("stale version", slot)}
    yield Step("addTags", place, {"json": {"tags": ["never"]}, "headers": headers})
    yield Step("removeTag", {**place, "tag": "never"}, {"headers": headers})
    yield Step("setMetadata", place, {"json": {"metadata": {"never": True}}, "headers": headers})
    yield Step("patchNote", place, {"json": expected})
    yield Step("patchNote", place, {"json": {"text": "never"}, "headers": headers})
    yield Step("deleteDocument", place, {"headers": headers})
    yield Step("getDocument", place)


def pairs_of_tags() -> Iterator[Step]:
    """Yield searches for documents with two tags, which random steps rarely find."""
    for tags in combinations(TAGS, 2):
        body = {"query": " ".join(WORDS[:20]), "mode": "fts", "top": 100, "tags": list(tags)}
        yield Step("search", request={"json": body})


def refusals() -> list[Step]:
    uuid = "00000000-0000-4000-8000-000000000000"
    json = {"Content-Type": "application/json"}
    bodies: list[dict[str, Any]] = [
        {},
        {"text": ""},
        {"text": " \n"},
        {"text": 5},
        {"text": "x", "colour": "red"},
        {"text": "x", "tags": ["a,b"]},
        {"text": "x", "tags": ["x" * 201]},
        {"text": "x", "metadata": []},
        {"text": "x", "metadata": {"a": "x" * 70_000}},
        {"text": "x", "title": ""},
        {"text": "x", "source_path": ""},
    ]
    searches: list[dict[str, Any]] = [
        {},
        {"query": ""},
        {"query": " \n"},
        {"query": "-copper"},
        {"query": "x", "top": 0},
        {"query": "x", "top": "5"},
        {"query": "x", "mode": "semantic"},
        {"query": "x", "fts_only": True, "mode": "vector"},
        {"query": "x", "min_score": 2},
        {"query": "x", "max_chars": 5},
        {"query": "x", "max_tokens": 5},
        {"query": "x", "detail": "titles"},
        {"query": "x", "filters": {"date_from": "yesterday"}},
        {"query": "x", "filters": {"date_from": "2025-02-01", "date_to": "2025-01-01"}},
        {"query": "x", "filters": {"colour": "red"}},
        {"query": "x", "ranking": {"ranking_weights": {"semantic": 0.5}}},
        {"query": "x", "ranking": {"ranking_weights": {"colour": 1.0}}},
    ]
    lists: list[dict[str, Any]] = [
        {"limit": 0},
        {"limit": 1001},
        {"offset": -1},
        {"sort_by": "colour"},
        {"doc_type": "song"},
        {"colour": "red"},
    ]
    return [
        *(Step("createJob", request={"json": body}) for body in bodies),
        *(Step("search", request={"json": body}) for body in searches),
        *(Step("listDocuments", request={"params": params}) for params in lists),
        Step("createJob", request={"content": b"{", "headers": json}),
        Step("createJob", request={"content": b"[]", "headers": json}),
        Step("createJob", request={"content": b"x", "headers": {"Content-Type": "text/plain"}}),
        Step("createJob", request={"files": {"file": ("a.exe", b"MZ")}}),
        Step("createJob", request={"files": {"file": ("a.txt", b"x")}, "data": {"colour": "red"}}),
        Step("createJob", request={"files": {"file": ("a.txt", b"x")}, "data": {"tags": "a"}}),
        Step("createJob", request={"json": {"text": "x"}, "headers": {"Idempotency-Key": "x" * 256}}),
        Step("createJob", request={"files": {"file": ("a.pdf", b"no PDF")}}, slot=0),
        Step("createJob", request={"files": {"file": ("a.pdf", locked_pdf())}}, slot=0),
        *(
            Step("createJob", request={"files": {"file": (name, b"none such")}}, slot=0)
            for name in ("a.pptx", "a.xlsx", "a.svg")
        ),
        Step("createJob", request={"files": {"file": ("a.txt", b"\xff\xff\xff")}}, slot=0),
        Step("listJobs", request={"params": {"status": "failed"}}),
        Step("createJob", request={"files": {"file": ("a.txt", b"")}}, slot=0),
        Step("listDocuments", request={"params": {"sort_by": "id"}}),
        Step("getJob", {"job_id": uuid}),
        Step("getJob", {"job_id": "1"}),
        Step("getJob", {"job_id": uuid}, {"params": {"wait": 31}}),
        Step("cancelJob", {"job_id": uuid}),
        Step("retryJob", {"job_id": uuid}),
        Step("createJob", request={"files": {"file": ("a.txt", b"\xff\xff")}}, slot=0),
        Step("retryJob", {"job_id": Given("job", 0)}, slot=0),
        Step("getDocument", {"document_id": uuid}),
        Step("getDocument", {"document_id": "0"}),
        Step("getDocument", {"document_id": "9223372036854775807"}),
        Step("deleteDocument", {"document_id": uuid}),
        Step("removeSource", {"document_id": uuid}, {"params": {"source_path": "x"}}),
        Step("removeSource", {"document_id": "1"}),
        Step("clearDocuments"),
        Step("clearDocuments", request={"params": {"confirm": "false"}}),
        Step("patchNote", {"document_id": "9223372036854775807"}, {"json": {"text": "x"}}),
        Step("patchNote", {"document_id": "x"}, {"json": {"text": "x"}}),
        Step("patchNote", {"document_id": "1"}, {"json": {}}),
        Step("patchNote", {"document_id": "1"}, {"json": {"text": "x"}, "params": {"wait": 31}}),
        Step("addTags", {"document_id": uuid}, {"json": {"tags": ["a"]}}),
        Step("addTags", {"document_id": uuid}, {"json": {"tags": []}}),
        Step("addTags", {"document_id": uuid}, {"json": {"tags": ["a"]}, "headers": {"If-Match": "*"}}),
        Step("removeTag", {"document_id": uuid, "tag": "a"}),
        Step("no operation", method="GET", path="/api/v1/serch"),
        Step("no operation", method="GET", path="/"),
        Step("no operation", method="PUT", path="/api/v1/jobs"),
        Step("no operation", method="GET", path="/api/v1/jobs?limit=1&limit=2"),
        Step("getStatus", request={"headers": {"Authorization": "Bearer wrong"}}),
        Step("getStatus", request={"params": {"colour": "red"}}),
        *refusals_of_collections(),
    ]


def refusals_of_collections() -> list[Step]:
    """Refused requests of RAGler's operations, each with a different reason."""
    one, two, free = collection_id("memory"), collection_id("documents"), IDS[-1]
    searches: list[dict[str, Any]] = [
        {},
        {"query": "x", "limit": 0},
        {"query": "x", "collection_name": "a"},
        {"query": "x", "collectionName": "nothing"},
        {"query": "x", "collectionName": "a,b"},
        {"query": "x", "collectionId": "memory"},
        {"query": "x", "collectionName": "documents", "collectionId": one},
        {"query": "x", "filters": {"source_type": "mail"}},
        {"query": "x", "filters": {"date_to": "today"}},
        {"query": "x", "filters": {"date_from": "2025-02-01", "date_to": "2025-01-01"}},
    ]
    bodies: list[dict[str, Any]] = [
        {},
        {"name": "a/b"},
        {"name": "a", "created_by": "ann"},
        {"name": "a", "description": "x" * 4_001},
        {"name": "a", "colour": "red"},
    ]
    named = {"headers": {USER_ID: "refused"}}
    return [
        *(Step("vectorSearch", request={"json": body, **named}) for body in searches),
        *(Step("putCollection", {"collection_id": free}, {"json": body}) for body in bodies),
        Step("putCollection", {"collection_id": one}, {"json": {"name": "documents"}}),
        Step("putCollection", {"collection_id": two}, {"json": {"name": "later"}}),
        Step("putCollection", {"collection_id": "1"}, {"json": {"name": "documents"}}),
        Step("getCollection", {"collection_id": "1"}),
        Step("getCollection", {"collection_id": collection_id("nothing")}, named),
        Step("listCollections", request={"headers": {USER_ID: "x" * 256}}),
        Step("listCollections", request={"headers": {USER_ROLE: "x" * 65}}),
    ]


def limited() -> list[Step]:
    often = {"headers": {USER_ID: "often"}}
    return [Step("listCollections", request=often) for _ in range(LIMITS["listCollections"] + 1)]
