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
import json
import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pytest

from kb_contracts.api.ragler import collection_id
from kb_engine.store.sqlite.schema import MIGRATIONS
from kb_load.processes import free_port
from tests.faults.killed import ENGINE, Ended, Forks, Kill, forks
from tests.support import engines
from tests.support.eventually import eventually
from tests.support.expected_base import (
    JOBS,
    TABLES,
    Act,
    History,
    Row,
    base_of,
    check_notes,
    check_same,
    check_search,
    send,
    state,
)
from tests.support.patience import ANSWER_SECONDS, START_SECONDS
from tests.support.postgres import Database, give_back, new_database
from tests.support.scope import ALL, rows
from tests.unit.engine.store.test_migration_kills import fill_sqlite

pytestmark = pytest.mark.process

KILLS = int(os.environ.get("KB_TEST_KILLS", "6" if ALL else "2"))
SEED = int(os.environ.get("KB_TEST_SEED", "1"))
FIRST_WITH_JOBS = 2
"""The first layout with a table of jobs."""
SETTINGS = {"KB_EMBEDDER": "hash", "KB_KEEP_ORIGINALS": "true", "KB_INGEST_WORKERS": "1"}


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
