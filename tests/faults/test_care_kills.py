"""Commands that care for a base, and changes of its notes, killed at random moments and repeated.

After each kill the same command runs again, or the engine starts again and the same request is sent again.
Then each document is there once, with its number, uid, version, tags, text, passages, vectors, earlier
versions and feedback, and so is the trash.

Kills are drawn from a seed, `KB_TEST_SEED`: before a moment (`killed.py`), after a commit, whose answer is
then lost, or after a time, within a system call or within SQLite, too. `KB_TEST_KILLS` is the number of kills
of each operation.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from kb_contracts.api.ragler import collection_id
from kb_engine.store.sqlite.schema import MIGRATIONS
from kb_load.processes import free_port
from tests.faults.killed import ENGINE, Ended, Forks, Kill, forks
from tests.support import engines
from tests.support.eventually import eventually
from tests.support.patience import ANSWER_SECONDS, START_SECONDS
from tests.support.postgres import Database, give_back, new_database
from tests.support.scope import ALL, rows
from tests.unit.engine.store.test_migration_kills import fill_sqlite

pytestmark = pytest.mark.process

KILLS = int(os.environ.get("KB_TEST_KILLS", "6" if ALL else "2"))
SEED = int(os.environ.get("KB_TEST_SEED", "1"))
FIRST_WITH_JOBS = 2
"""The first layout with a table of jobs."""
COLLECTIONS = ("stones", "rivers", "winds")
SETTINGS = {"KB_EMBEDDER": "hash", "KB_KEEP_ORIGINALS": "true", "KB_INGEST_WORKERS": "1"}

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


# The base of the commands, made once.


@dataclass(frozen=True)
class Filled:
    """A base not in use, and its notes and their files."""

    home: Path
    history: History

    def copy(self, home: Path) -> Path:
        shutil.copytree(self.home, home)
        return home

    def check_search(self, home: Path, about: str) -> None:
        with (
            engines.engine(home, api_key="") as url,
            httpx.Client(base_url=url, timeout=ANSWER_SECONDS) as http,
        ):
            check_search(http, self.history.notes, self.history.gone, about)
            trash = http.get("/api/v1/trash").raise_for_status().json()["versions"]
            assert sorted(each["document_id"] for each in trash) == sorted(
                note.number for note in self.history.notes.values() if not note.stands
            ), about


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Notes with versions, tags, a trash and feedback, kept files, a described collection, a failed job."""
    home, history = tmp_path_factory.mktemp("filled") / "home", History(f"base {SEED}")
    with engines.engine(home, api_key="") as url, httpx.Client(base_url=url, timeout=ANSWER_SECONDS) as http:
        for _ in range(90):
            act = history.draw()
            act.effect(send(http, act))
        for number in range(5):
            sent = http.post(
                "/api/v1/jobs",
                files={"file": (f"{number}.txt", f"granite of file {number} ".encode() * (400 * number + 1))},
                data={"tags": json.dumps(["collection:files"]), "source_path": f"/stones/{number}.txt"},
            )
            sent.raise_for_status()
        http.post("/api/v1/jobs", files={"file": ("broken.pdf", b"%PDF-1.7 not really")}).raise_for_status()
        eventually(
            lambda: http.get("/api/v1/status").json()["queue"],
            lambda queue: queue["queued"] == queue["running"] == 0,
            what="the end of all jobs",
        )
        described = {"name": "stones", "description": "What lies about"}
        http.put(f"/collections/{collection_id('stones')}", json=described).raise_for_status()
        first = next(note.number for note in history.notes.values() if note.stands)
        http.put(f"/api/v1/documents/{first}/feedback", json={"signal": "useful"}).raise_for_status()
    history.notes = dict(history.notes)
    return Filled(home, history)


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with forks(KB_HOME=str(tmp_path_factory.mktemp("unused")), **SETTINGS) as made:
        yield made


# Kills of commands.


@dataclass
class Killing:
    """Kills of one command, which is repeated until it succeeds."""

    kb: Forks
    name: str
    kinds: Sequence[str] = ("moment", "commit", "time")
    killed: int = 0
    length: Ended | None = None
    """The command without a kill."""

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.name} {SEED}")

    @property
    def rounds(self) -> Iterator[int]:
        """Numbers of rounds, until there were `KILLS` kills."""
        number = 0
        while self.killed < KILLS:
            yield (number := number + 1)

    def measure(self, *command: str) -> Ended:
        """Run the command without a kill, to learn its length."""
        ended = self.kb.run(*command)
        assert ended.status == 0, ended.output
        self.length = ended
        return ended

    def complete(self, *command: str, there: str = "") -> str:
        """Kill the command, at times repeatedly, and let it succeed; return a description for failures.

        `there`: the refusal of a run after a kill that came when all was done.
        """
        about = f"{self.name}, seed {SEED}"
        while True:
            kill = None if about.count(";") and self.random.random() < 0.7 else self.draw()
            ended = self.kb.run(*command, kill=kill)
            if not ended.is_killed:
                done = ended.status == 0 or (there and there in ended.output and "; kill" in about)
                assert done, f"{about}: {ended.status} {ended.output}"
                print(about)
                return about
            self.killed += 1
            about += f"; kill {self.killed} at {kill}: moment {ended.moments}, after {ended.last[:100]!r}"

    def draw(self) -> Kill:
        assert self.length is not None, "it is measured first"
        kind = self.random.choice(self.kinds)
        if kind == "moment":
            return Kill("moment", self.random.randrange(self.length.moments))
        if kind == "commit" and self.length.commits:
            return Kill("commit", self.random.randrange(self.length.commits))
        return Kill("time", self.random.uniform(0.0, self.length.seconds))


def check_whole(kb: Forks, home: Path, about: str) -> None:
    """Expect `kb check` to find nothing, and no file of an interrupted command."""
    ended = kb.run("check", "--deep", "--json", "--home", str(home))
    assert (ended.status, json.loads(ended.output)["hurt"]) == (0, []), f"{about}: {ended.output}"
    left = [path.name for path in home.rglob("*") if path.name.endswith((".new", ".partial", ".restored"))]
    assert left == [], about


def test_a_backup_is_complete_whenever_it_was_killed(kb: Forks, filled: Filled, tmp_path: Path) -> None:
    killing = Killing(kb, "backup")
    home = filled.copy(tmp_path / "home")
    expected = state(base_of(home), TABLES | JOBS)
    whole = tmp_path / "whole"
    killing.measure("backup", str(whole), "--home", str(home))
    files = {path.name for path in whole.rglob("*")}
    for number in killing.rounds:
        copy = tmp_path / str(number)
        about = killing.complete("backup", str(copy), "--home", str(home), there="is there already")
        assert {path.name for path in copy.rglob("*")} == files, about
        assert not copy.with_name(f"{number}.partial").exists(), about
        restored = tmp_path / "restored"
        assert kb.run("restore", str(copy), "--home", str(restored)).status == 0, about
        check_same(state(base_of(restored), TABLES | JOBS), expected, about)
        check_same(state(base_of(home), TABLES | JOBS), expected, about)
        for folder in (copy, restored):
            shutil.rmtree(folder)
    check_whole(kb, home, killing.name)


def test_a_restore_is_complete_whenever_it_was_killed(kb: Forks, filled: Filled, tmp_path: Path) -> None:
    killing = Killing(kb, "restore")
    copy = tmp_path / "copy"
    assert kb.run("backup", str(copy), "--home", str(filled.home)).status == 0
    expected = state(base_of(filled.home), TABLES | JOBS)
    killing.measure("restore", str(copy), "--home", str(tmp_path / "first"))
    for number in killing.rounds:
        home = tmp_path / str(number)
        about = killing.complete("restore", str(copy), "--home", str(home), there="is there already")
        check_same(state(base_of(home), TABLES | JOBS), expected, about)
        spooled = {path.name for path in (filled.home / "engine" / "spool").iterdir()}
        assert {path.name for path in (home / "engine" / "spool").iterdir()} == spooled, about
        check_whole(kb, home, about)
        filled.check_search(home, about)
        shutil.rmtree(home)


def test_a_migration_to_sqlite_is_complete_whenever_it_was_killed(
    kb: Forks, filled: Filled, tmp_path: Path
) -> None:
    killing = Killing(kb, "migrate to SQLite")
    source = base_of(filled.copy(tmp_path / "source"))
    expected = state(source)
    whole = killing.measure(*migration(f"sqlite:{source}", f"sqlite:{base_of(tmp_path / 'first')}"))
    for number in killing.rounds:
        home = tmp_path / str(number)
        about = killing.complete(*migration(f"sqlite:{source}", f"sqlite:{base_of(home)}"))
        check_same(state(base_of(home)), expected, about)
        check_same(state(source), expected, about)
        again = kb.run(*migration(f"sqlite:{source}", f"sqlite:{base_of(home)}"))
        assert json.loads(again.output)["digest"] == json.loads(whole.output)["digest"], about
        check_whole(kb, home, about)
        filled.check_search(home, about)
        shutil.rmtree(home)


def test_a_migration_to_postgresql_is_complete_whenever_it_was_killed(
    kb: Forks, filled: Filled, tmp_path: Path
) -> None:
    """It is read by a migration back."""
    killing = Killing(kb, "migrate to PostgreSQL")
    source = base_of(filled.copy(tmp_path / "source"))
    expected = state(source)
    with database() as place:
        killing.measure(*migration(f"sqlite:{source}", place.url))
    for number in killing.rounds:
        with database() as place:
            about = killing.complete(*migration(f"sqlite:{source}", place.url))
            back = tmp_path / str(number)
            ended = kb.run(*migration(place.url, f"sqlite:{base_of(back)}"))
            assert ended.status == 0, f"{about}: {ended.output}"
            check_same(state(base_of(back)), expected, about)
            check_same(state(source), expected, about)
            check_whole(kb, back, about)
            shutil.rmtree(back)


def migration(source: str, target: str) -> tuple[str, ...]:
    return ("migrate", source, target, "--json")


@contextmanager
def database() -> Iterator[Database]:
    made = asyncio.run(new_database())
    yield made
    give_back(made)


def test_a_migration_of_an_earlier_layout_keeps_its_source(kb: Forks, tmp_path: Path) -> None:
    """The source is brought to the present layout first, and a copy of it is kept."""
    killing = Killing(kb, "migrate an earlier layout")
    for number in killing.rounds:
        layout = killing.random.randrange(1, len(MIGRATIONS))
        folder = tmp_path / str(number)
        folder.mkdir()
        old = folder / "old.db"
        fill_sqlite(old, layout)
        with closing(sqlite3.connect(old)) as db:
            if layout >= FIRST_WITH_JOBS:
                db.execute("DELETE FROM jobs")  # they have not ended
            db.commit()
        before = contents(old)
        first, source, compared = (folder / f"{name}.db" for name in ("first", "source", "compared"))
        for copy in (first, source):
            shutil.copy(old, copy)
        killing.measure(*migration(f"sqlite:{first}", f"sqlite:{compared}"))
        target = folder / "target.db"
        about = killing.complete(*migration(f"sqlite:{source}", f"sqlite:{target}")) + f", layout {layout}"
        check_same(state(source), state(first), about)
        check_same(state(target), state(compared), about)
        assert contents(folder / f"source.db.layout-{layout}") == before, about
        shutil.rmtree(folder)


def contents(base: Path) -> list[list[Row]]:
    """Return the rows of the tables that every layout has."""
    tables = ("documents", "note_texts", "chunks", "vectors", "document_tags")
    with closing(sqlite3.connect(base)) as db:
        return [db.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall() for table in tables]


DAMAGES = {
    "vectors are gone": "DELETE FROM vectors WHERE chunk_id IN "
    "(SELECT id FROM chunks WHERE document_id = :number)",
    "a vector is damaged": "UPDATE vectors SET vector = zeroblob(length(vector)) WHERE chunk_id = "
    "(SELECT max(id) FROM chunks WHERE document_id = :number)",
    "a vector is cut off": "UPDATE vectors SET vector = x'00' WHERE chunk_id = "
    "(SELECT min(id) FROM chunks WHERE document_id = :number)",
    "the last passage is gone": "DELETE FROM chunks WHERE id = "
    "(SELECT max(id) FROM chunks WHERE document_id = :number)",
    "all passages are gone": "DELETE FROM chunks WHERE document_id = :number",
    "a passage is another": "UPDATE chunks SET text = 'other' WHERE id = "
    "(SELECT min(id) FROM chunks WHERE document_id = :number)",
    "the count is another": "UPDATE documents SET chunk_count = chunk_count + 3 WHERE id = :number",
}
"""Damage to a note that can be derived from the rest."""


def damage(base: Path, history: History, chance: random.Random) -> set[Row]:
    """Damage some notes, an index of SQLite and files of the search index; return the lost passages."""
    numbers = [note.number for note in history.notes.values() if note.stands and not note.is_file]
    with closing(sqlite3.connect(base)) as db:
        db.execute("PRAGMA foreign_keys = ON")
        places = "SELECT document_id, position FROM chunks"
        before = set(db.execute(places))
        for number in chance.sample(numbers, 5):
            db.execute(DAMAGES[chance.choice([*DAMAGES])], {"number": number})
        lost = before - set(db.execute(places))
        db.commit()
        if chance.random() < 0.5:
            make_index_partial(db, chance.choice(("documents_by_content", "documents_by_update")))
    for path in sorted(base.with_name(f"{base.name}.index").iterdir()):
        if chance.random() < 0.3:
            path.write_bytes(path.read_bytes()[: chance.randrange(200)])
        elif chance.random() < 0.2:
            path.unlink()
    return lost


def make_index_partial(db: sqlite3.Connection, name: str) -> None:
    """Take the entries of most rows out of an index, which SQLite then finds damaged."""
    (whole,) = db.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    change = "UPDATE sqlite_schema SET sql = ? WHERE name = ?"
    db.execute("PRAGMA writable_schema = ON")
    db.execute(change, (f"{whole} WHERE id > 5", name))
    db.commit()
    db.execute("PRAGMA writable_schema = RESET")
    db.execute("REINDEX")
    db.execute("PRAGMA writable_schema = ON")
    db.execute(change, (whole, name))
    db.commit()


def without_uids(found: dict[str, list[Row]], lost: set[Row]) -> dict[str, list[Row]]:
    """Leave out the uids of passages that were lost, by document and position; they got another one."""
    passages = [(*row[:2], "", *row[3:]) if row[:2] in lost else row for row in found["passages"]]
    return {**found, "passages": passages}


def test_a_repair_is_complete_whenever_it_was_killed(kb: Forks, filled: Filled, tmp_path: Path) -> None:
    killing = Killing(kb, "check --repair")
    expected = state(base_of(filled.home))
    for number in killing.rounds:
        first, home = (tmp_path / f"{number}-{name}" for name in ("first", "killed"))
        lost = damage(base_of(filled.copy(home)), filled.history, killing.random)
        shutil.copytree(home, first)
        command = ("check", "--deep", "--repair", "--home")
        killing.measure(*command, str(first))
        about = killing.complete(*command, str(home))
        check_same(without_uids(state(base_of(home)), lost), without_uids(expected, lost), about)
        check_whole(kb, home, about)
        filled.check_search(home, about)
        for folder in (first, home):
            shutil.rmtree(folder)


# Kills of an engine.

ACTS = 25
"""Changes by each client between the start of an engine and its kill, at most about."""


@dataclass
class Served:
    """An engine in a fork, on one base; an address of PostgreSQL is `store`."""

    kb: Forks
    home: Path
    store: str = ""
    port: int = field(default_factory=free_port)

    @property
    def settings(self) -> dict[str, str]:
        return {"KB_HOME": str(self.home), "KB_STORE": self.store}

    def start(self, kill: Kill | None = None) -> int:
        bounds = {"KB_KEEP_VERSIONS": "1000", "KB_LEASE_SECONDS": "3"}
        return self.kb.start(ENGINE, kill=kill, KB_ENGINE_PORT=str(self.port), **bounds, **self.settings)

    def is_ready(self, http: httpx.Client) -> bool:
        """Wait until the engine answers, and return True, or until it has ended."""

        def look() -> bool | None:
            if self.kb.has_ended():
                return False
            try:
                return http.get("/readyz").is_success or None
            except httpx.TransportError:
                return None

        return bool(eventually(look, lambda seen: seen is not None, seconds=START_SECONDS, what="readiness"))

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=ANSWER_SECONDS)

    def check(self, histories: Sequence[History], about: str) -> None:
        """Compare the base, not in use; one on PostgreSQL is copied to SQLite for that."""
        ended = self.kb.run("check", "--deep", "--json", kill=None, **self.settings)
        assert (ended.status, json.loads(ended.output)["hurt"]) == (0, []), f"{about}: {ended.output}"
        if not self.store:
            check_notes(base_of(self.home), histories, about)
            return
        copy = self.home / "copy.sqlite"
        ended = self.kb.run(*migration(self.store, f"sqlite:{copy}"))
        assert ended.status == 0, f"{about}: {ended.output}"
        check_notes(copy, histories, about)
        for path in self.home.glob("copy.sqlite*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("kind", "clients"), rows(("SQLite", 1), whole=[("SQLite", 3), ("PostgreSQL", 1), ("PostgreSQL", 3)])
)
def test_changes_of_notes_happen_once_whenever_the_engine_was_killed(
    kb: Forks, tmp_path: Path, kind: str, clients: int
) -> None:
    """An answered change holds, and one that was not answered happens once when it is sent again."""
    # An engine on PostgreSQL has moments at its start alone.
    kinds = ("time",) if kind == "PostgreSQL" else Killing.kinds
    killing = Killing(kb, f"engine on {kind}, {clients} clients", kinds)
    histories = [History(f"{killing.name} {number} {SEED}", number) for number in range(clients)]
    with ExitStack() as stack, ThreadPoolExecutor(clients) as pool:
        store = stack.enter_context(database()).url if kind == "PostgreSQL" else ""
        engine = Served(kb, tmp_path, store)
        killing.length = serve(engine, histories, acts=ACTS)
        for _ in killing.rounds:
            kill = killing.draw()
            engine.start(kill)
            with engine.client() as http:
                changing = partial(changed_until_killed, http)
                pending = [*pool.map(changing, histories)] if engine.is_ready(http) else []
            ended = kb.wait()
            assert ended.is_killed, ended
            killing.killed += 1
            about = f"{killing.name}, seed {SEED}, kill {killing.killed} at {kill}: moment {ended.moments}, "
            about += (
                f"after {ended.last[:100]!r}, in {', '.join(each.name for each in pending) or 'the start'}"
            )
            print(about)
            if not store:
                check_copy(kb, tmp_path, about)
            serve(engine, histories, pending, about)


def check_copy(kb: Forks, home: Path, about: str) -> None:
    """Expect a copy of the base as the killed engine left it to have everything that is in it."""
    copy, restored = home / "copy", home / "restored"
    for command in (
        ("backup", str(copy), "--home", str(home)),
        ("restore", str(copy), "--home", str(restored)),
    ):
        ended = kb.run(*command)
        assert ended.status == 0, f"{about}: {ended.output}"
    expected = state(base_of(home), TABLES | JOBS)
    # A file without a row is removed by the next start.
    expected["files"] = [(sha256, sha256) for sha256, _ in expected["originals"]]
    check_same(state(base_of(restored), TABLES | JOBS), expected, about)
    for folder in (copy, restored):
        shutil.rmtree(folder)


def changed_until_killed(http: httpx.Client, history: History) -> Act:
    """Change notes until the engine is gone; return the change without an answer."""
    while True:
        act = history.draw()
        try:
            answer = send(http, act)
        except httpx.TransportError:
            return act
        act.effect(answer)


def serve(
    engine: Served,
    histories: Sequence[History],
    pending: Sequence[Act] = (),
    about: str = "",
    *,
    acts: int = 0,
) -> Ended:
    """Start an engine, send the pending changes and further ones, stop it, and compare the base."""
    process = engine.start()
    with engine.client() as http:
        assert engine.is_ready(http), f"{about}: {engine.kb.wait().output}"
        for act in pending:
            act.effect(send(http, act))
        for history in histories:
            for _ in range(acts):
                act = history.draw()
                act.effect(send(http, act))
        for history in histories:
            check_search(http, history.notes, history.gone, about)
    os.kill(process, signal.SIGTERM)
    ended = engine.kb.wait()
    assert ended.status == 0, f"{about}: {ended.output}"
    engine.check(histories, about)
    return ended
