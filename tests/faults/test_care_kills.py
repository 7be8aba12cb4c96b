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
import shutil
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from kb_engine.store.sqlite.schema import MIGRATIONS
from tests.faults.care_kills import SEED, Filled, Killing, Served, check_whole, damage, fill, migration
from tests.faults.killed import Ended, Forks, forks
from tests.support.expected_base import (
    JOBS,
    TABLES,
    Act,
    History,
    Row,
    base_of,
    check_same,
    check_search,
    send,
    state,
)
from tests.support.postgres import Database, give_back, new_database
from tests.support.scope import ALL
from tests.unit.engine.store.test_migration_kills import fill_sqlite

pytestmark = pytest.mark.process

FIRST_WITH_JOBS = 2
"""The first layout with a table of jobs."""
SETTINGS = {"KB_EMBEDDER": "hash", "KB_KEEP_ORIGINALS": "true", "KB_INGEST_WORKERS": "1"}


# The base of the commands, made once.


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return fill(tmp_path_factory.mktemp("filled") / "home")


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with forks(KB_HOME=str(tmp_path_factory.mktemp("unused")), **SETTINGS) as made:
        yield made


# Kills of commands.


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


@pytest.mark.parametrize(("kind", "clients"), [("SQLite", 3), ("PostgreSQL", 3)] if ALL else [("SQLite", 1)])
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
