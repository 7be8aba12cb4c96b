"""The expected state of a base under random changes of its notes, and the comparison with its rows."""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.eventually import eventually

COLLECTIONS = ("stones", "rivers", "winds")

Row = tuple[Any, ...]


# The state of a base, as far as it is not derived.

TABLES = {
    "documents": "SELECT * FROM documents ORDER BY id",
    "sources": "SELECT document_id, source_path FROM document_sources ORDER BY document_id, id",
    "tags": "SELECT document_id, tag FROM document_tags ORDER BY document_id, id",
    "texts": "SELECT * FROM note_texts ORDER BY document_id",
    "passages": "SELECT c.document_id, position, uid, text, page, heading, first, beyond, tokens, vector "
    "FROM chunks c LEFT JOIN vectors v ON v.chunk_id = c.id ORDER BY c.document_id, position, c.id",
    "versions": "SELECT document_id, uid, version, removed, kept_at, expires_at, members, text, passages, "
    "vectors, original, text_hash FROM versions ORDER BY document_id, version, id",
    "originals": "SELECT * FROM originals ORDER BY sha256",
    "collections": "SELECT * FROM collections ORDER BY id",
    "feedback": "SELECT * FROM feedback ORDER BY document_id, voice",
}
JOBS = {"jobs": "SELECT id, status, spool, retryable, document_id FROM jobs ORDER BY seq"}
"""Further rows of a copy of a base; `kb migrate` leaves them behind."""


def base_of(home: Path) -> Path:
    return home / "engine" / "kb.sqlite"


def state(base: Path, tables: Mapping[str, str] = TABLES) -> dict[str, list[Row]]:
    """Return the rows of a base, and the kept files with the hashes of their contents."""
    with closing(sqlite3.connect(base)) as db:
        found = {name: db.execute(sql).fetchall() for name, sql in tables.items()}
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        orphans = "SELECT count(*) FROM vectors WHERE chunk_id NOT IN (SELECT id FROM chunks)"
        assert db.execute(orphans).fetchone() == (0,)
    folder = base.with_name(f"{base.name}.originals")
    kept = sorted(folder.iterdir()) if folder.exists() else []
    found["files"] = [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in kept]
    return found


def check_same(found: Mapping[str, list[Row]], expected: Mapping[str, list[Row]], about: str) -> None:
    """Compare two states; a failure names the table and the rows."""
    for table, wanted in expected.items():
        lost = [row for row in wanted if row not in found[table]]
        further = [row for row in found[table] if row not in wanted]
        assert (lost[:3], further[:3]) == ([], []), f"{about}: {table}"
        assert found[table] == wanted, f"{about}: the order or number of {table}"


# Notes, as a client of the engine expects them.


@dataclass
class Note:
    """An expected note, or file of that text; `versions` are the kept earlier ones, by title and text."""

    number: int
    title: str
    text: str
    tags: list[str]
    is_file: bool = False
    version: int = 1
    stands: bool = True
    versions: dict[int, tuple[str, str]] = field(default_factory=dict)


@dataclass
class Act:
    """A request, and its effect on the expected notes once it is answered."""

    name: str
    method: str
    path: str
    body: dict[str, Any]
    """Arguments of the HTTP client."""
    effect: Callable[[dict[str, Any]], None]
    key: str


class History:
    """Changes of notes, drawn from a seed, and the notes that result."""

    def __init__(self, seed: str, client: int = 0) -> None:
        """`client` makes its texts differ from those of other histories of the base."""
        self.random = random.Random(seed)
        self._client = client
        self.notes: dict[int, Note] = {}
        self.gone: list[str] = []
        """Texts of notes that were removed for good."""
        self._serial = 0

    def text(self) -> str:
        """Return a new text, with a word of its own; some have several passages."""
        self._serial += 1
        number = f"{self._serial}by{self._client}"
        length = self.random.choice((5, 30, 700))
        filling = " ".join(f"filling{word}of{number}" for word in range(length))
        return f"unique{number}word {filling}"

    def draw(self) -> Act:
        """Return the next change; its parts are drawn now, whatever happens to its request."""
        standing = [note for note in self.notes.values() if note.stands]
        removed = [note for note in self.notes.values() if not note.stands]
        older = [note for note in standing if note.versions]
        notes = [note for note in standing if not note.is_file]
        files = [note for note in standing if note.is_file]
        kinds = ["add", "send"] * (3 if len(standing) < 12 else 1)
        kinds += (["update"] * 4 + ["move"] * 3) * bool(notes) + ["send again"] * 4 * bool(files)
        kinds += ["remove"] * 4 * (len(standing) > 4) + ["purge"] * (len(standing) > 8)
        kinds += (
            ["bring back"] * 4 * bool(removed) + ["restore"] * 3 * bool(older) + ["forget"] * (len(older) > 6)
        )
        kind = self.random.choice(kinds)
        chosen = {
            "bring back": removed, "restore": older, "forget": older, "send again": files, "update": notes,
            "move": notes,
        }.get(kind, standing)  # fmt: skip
        note = None if kind in ("add", "send") else self.random.choice(chosen)
        make: Callable[..., tuple[str, str, dict[str, Any], Callable[[dict[str, Any]], None]]]
        make = getattr(self, "_" + kind.replace(" ", "_"))
        method, path, body, effect = make() if note is None else make(note)
        name = kind if note is None else f"{kind} {note.number}"
        return Act(name, method, f"/api/v1{path}", body, effect, f"{self.random.getrandbits(64):x}")

    def _add(self) -> tuple[Any, ...]:
        text, title = self.text(), f"Note {self._serial}"
        tags = [f"collection:{self.random.choice(COLLECTIONS)}", "kept"]

        def effect(job: dict[str, Any]) -> None:
            number = int(job["document_id"])
            assert number not in self.notes
            self.notes[number] = Note(number, title, text, tags)

        return "POST", "/jobs", {"json": {"text": text, "title": title, "tags": tags}}, effect

    def _send(self) -> tuple[Any, ...]:
        text, tags = self.text(), ["collection:files"]
        name = f"{text.split()[0]}.txt"

        def effect(job: dict[str, Any]) -> None:
            number = int(job["document_id"])
            assert number not in self.notes
            self.notes[number] = Note(number, name, text, tags, is_file=True)

        return "POST", "/jobs", _file(name, text), effect

    def _send_again(self, note: Note) -> tuple[Any, ...]:
        text = self.text()

        def effect(job: dict[str, Any]) -> None:
            assert job["document_id"] == note.number
            note.versions[note.version] = (note.title, note.text)
            note.text = text
            note.version += 1

        return "POST", "/jobs", _file(note.title, text), effect

    def _update(self, note: Note) -> tuple[Any, ...]:
        text = self.text()

        def effect(_: dict[str, Any]) -> None:
            note.versions[note.version] = (note.title, note.text)
            note.text = text
            note.version += 1

        return "PATCH", f"/notes/{note.number}", {"json": {"text": text}}, effect

    def _move(self, note: Note) -> tuple[Any, ...]:
        old = note.tags[-1] if note.tags[-1].startswith("collection:") else note.tags[0]
        new = next(f"collection:{name}" for name in COLLECTIONS if f"collection:{name}" != old)

        def effect(_: dict[str, Any]) -> None:
            note.tags = [*(tag for tag in note.tags if tag != old), new]
            note.version += 2

        return "DELETE", f"/documents/{note.number}/tags/{old}?add={new}", {}, effect

    def _remove(self, note: Note) -> tuple[Any, ...]:
        def effect(_: dict[str, Any]) -> None:
            note.versions[note.version] = (note.title, note.text)
            note.stands = False

        return "DELETE", f"/documents/{note.number}", {}, effect

    def _purge(self, note: Note) -> tuple[Any, ...]:
        def effect(_: dict[str, Any]) -> None:
            del self.notes[note.number]
            self.gone.append(note.text)

        return "DELETE", f"/documents/{note.number}?purge=true", {}, effect

    def _forget(self, note: Note) -> tuple[Any, ...]:
        return "DELETE", f"/documents/{note.number}/versions", {}, lambda _: note.versions.clear()

    def _bring_back(self, note: Note) -> tuple[Any, ...]:
        version = self.random.choice([note.version, *note.versions])

        def effect(_: dict[str, Any]) -> None:
            note.title, note.text = note.versions[version]
            if version == note.version:
                del note.versions[version]
            note.version, note.stands = note.version + 1, True

        return "POST", f"/documents/{note.number}/versions/{version}/restore", {}, effect

    def _restore(self, note: Note) -> tuple[Any, ...]:
        version = self.random.choice([*note.versions])

        def effect(_: dict[str, Any]) -> None:
            title, text = note.versions[version]
            if (title, text) != (note.title, note.text):
                note.versions[note.version] = (note.title, note.text)
                note.title, note.text, note.version = title, text, note.version + 1

        return "POST", f"/documents/{note.number}/versions/{version}/restore", {}, effect


def _file(name: str, text: str) -> dict[str, Any]:
    """Return the body that sends a file from a source, of which it replaces an earlier one."""
    data = {"tags": json.dumps(["collection:files"]), "source_path": f"/{name}"}
    return {"files": {"file": (name, text.encode())}, "data": data}


def check_notes(base: Path, histories: Sequence[History], about: str) -> None:
    """Compare the notes of the histories, which are all that the base has, with its rows."""
    notes = [note for history in histories for note in history.notes.values()]
    found = state(base)
    named = {row[0]: row for row in found["documents"]}
    expected = {note.number: note for note in notes if note.stands}
    with closing(sqlite3.connect(base)) as db:
        columns = [name for _, name, *_ in db.execute("PRAGMA table_info (documents)")]
    assert sorted(named) == sorted(expected), about
    texts: dict[int, str] = dict(found["texts"])
    tags: dict[int, list[str]] = {number: [] for number in named}
    for number, tag in found["tags"]:
        tags[number].append(tag)
    for number, note in expected.items():
        row = dict(zip(columns, named[number], strict=True))
        digest = hashlib.sha256(note.text.encode()).hexdigest()
        assert (row["title"], row["version"], row["sha256"], tags[number]) == (
            note.title, note.version, digest, note.tags,
        ), f"{about}: document {number}"  # fmt: skip
        assert texts.get(number) == (None if note.is_file else note.text), f"{about}: text of {number}"
        positions = [row[1] for row in found["passages"] if row[0] == number]
        assert positions == [*range(row["chunk_count"])], f"{about}: passages of {number}"
    kept = {
        (row[0], row[2]): (members["title"], members["sha256"], row[7].split()[0])
        for row in found["versions"]
        for members in [json.loads(row[6])]
    }
    assert len(kept) == len(found["versions"]), about
    assert kept == {
        (note.number, version): (title, hashlib.sha256(text.encode()).hexdigest(), text.split()[0])
        for note in notes
        for version, (title, text) in note.versions.items()
    }, about
    files = {note.text for note in expected.values() if note.is_file}
    files |= {text for note in notes if note.is_file for _, text in note.versions.values()}
    hashes = sorted(hashlib.sha256(text.encode()).hexdigest() for text in files)
    assert found["files"] == [(name, name) for name in hashes], f"{about}: the kept files"
    assert {(row[0], row[2]) for row in found["versions"] if row[3]} == {
        (note.number, note.version) for note in notes if not note.stands
    }, f"{about}: the trash"


def send(http: httpx.Client, act: Act) -> dict[str, Any]:
    """Send a request, wait for its job if it becomes one, and return the answer."""
    headers = {"Idempotency-Key": act.key}
    response = http.request(act.method, act.path, headers=headers, **act.body)
    assert response.is_success, (act.name, response.text)
    answer: dict[str, Any] = response.json()
    if response.status_code == httpx.codes.ACCEPTED:
        ended = eventually(
            lambda: http.get(f"/api/v1/jobs/{answer['id']}").raise_for_status().json(),
            lambda job: job["status"] not in ("queued", "running"),
            what="the end of the job",
        )
        assert ended["status"] == "completed", ended
        return dict(ended)
    return answer


def find(http: httpx.Client, text: str) -> list[int]:
    """Return the documents found by the text's own word."""
    asked = {"query": text.split()[0], "mode": "fts", "top": 100}
    results = http.post("/api/v1/search", json=asked).raise_for_status().json()["results"]
    return sorted({each["document"]["id"] for each in results})


def check_search(http: httpx.Client, notes: Mapping[int, Note], gone: list[str], about: str) -> None:
    for note in notes.values():
        assert find(http, note.text) == [note.number] * note.stands, f"{about}: search for {note.number}"
    for text in gone:
        assert find(http, text) == [], f"{about}: search for a note that was purged"
