"""Commands that change a whole base, each killed at a random moment."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from kb_contracts.api.ragler import collection_id
from kb_load.processes import free_port
from tests.faults.killed import ENGINE, Ended, Forks, Kill
from tests.support import engines
from tests.support.eventually import eventually
from tests.support.expected_base import History, Row, base_of, check_notes, check_search, send
from tests.support.patience import ANSWER_SECONDS, START_SECONDS
from tests.support.scope import ALL

KILLS = int(os.environ.get("KB_TEST_KILLS", "6" if ALL else "2"))
SEED = int(os.environ.get("KB_TEST_SEED", "1"))


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
            httpx.Client(base_url=url, timeout=ANSWER_SECONDS, verify=False) as http,
        ):
            check_search(http, self.history.notes, self.history.gone, about)
            trash = http.get("/api/v1/trash").raise_for_status().json()["versions"]
            assert sorted(each["document_id"] for each in trash) == sorted(
                note.number for note in self.history.notes.values() if not note.stands
            ), about


def fill(home: Path) -> Filled:
    """Make a base with versions, tags, a trash, feedback, files, a collection and a failed job."""
    history = History(f"base {SEED}")
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


def migration(source: str, target: str) -> tuple[str, ...]:
    return ("migrate", source, target, "--json")


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
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=ANSWER_SECONDS, verify=False)

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
