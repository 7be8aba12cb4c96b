"""Backup of a base, which may be in use, and restoring a base from a backup.

A backup is a folder with the base, the uploads of unfinished and retryable jobs, the kept originals, the file
of keys if there is one, and `backup.json` with the SHA-256 of each file. The folder gets its final name only
when it is complete and verified by reading it. It contains one snapshot of the base: every change
acknowledged before that moment, and no later one. The index is left out, as it is derived.

    files ─▶ base (one read transaction) ─▶ files added meanwhile ─▶ verify ─▶ rename
                ▲                              │ a job or document of the snapshot has ended since, and its
                └──────────────────────────────┘ file is gone
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import apsw
import msgspec

from kb_engine.disk import sha256_of, sync
from kb_engine.store.clock import SteadyClock, elapsed_seconds
from kb_engine.store.port import BaseUnfinished
from kb_engine.store.repository import content, jobs, versions
from kb_engine.store.sqlite.connection import damage_of, rows, transaction, value
from kb_engine.store.sqlite.copying import PRIVATE, copied
from kb_engine.store.sqlite.damage import reindexed
from kb_engine.store.sqlite.opening import made_at, restoring
from kb_engine.store.sqlite.originals import originals_of
from kb_engine.store.sqlite.reading import SqliteRead, run_to_end
from kb_engine.store.sqlite.schema import MIGRATIONS, is_unfinished
from kb_engine.store.sqlite.segments import folder_of
from kb_engine.store.store import utc_now

BASE, SPOOL, ORIGINALS, KEYS, MANIFEST = "kb.sqlite", "spool", "originals", "keys.json", "backup.json"
_TRIES = 20
_NAMED = 5
_PAGE = 200
_UNUSED_ORIGINALS = (
    "DELETE FROM originals WHERE sha256 NOT IN (SELECT sha256 FROM documents) "
    "AND sha256 NOT IN (SELECT original FROM versions WHERE original IS NOT NULL)"
)
_DAMAGED = (
    "kb check names all that is damaged, kb check --repair mends what it can, and kb backup --damaged copies "
    "what is whole"
)


class BackupRefused(Exception):
    """The backup or restore is impossible; the message gives the reason and the remedy."""


class Backup(msgspec.Struct, forbid_unknown_fields=True):
    """The manifest of a backup. `files` maps paths within the folder to SHA-256; `layout` is that of the
    base.

    `uploads` counts the uploads of unfinished jobs, `failed_uploads` those of retryable failed jobs.
    `left_out` lists the damaged parts of the base that are not in the backup.
    """

    made_at: str
    layout: int
    documents: int
    chunks: int
    uploads: int
    files: dict[str, str]
    originals: int = 0
    failed_uploads: int = 0
    left_out: list[str] = []


def back_up(database: Path, spool: Path, keys: Path, to: Path, *, damaged: bool = False) -> Backup:
    """Copy a base, its uploads and keys into a new folder. Blocks; an engine may use the base meanwhile.

    `damaged` copies what is whole where something is not, and says what was left out.
    Raises BackupRefused: there is no base, the target exists, or the base is damaged or unfinished.
    """
    if not database.is_file():
        raise BackupRefused(f"{database}: there is no base. Name the data folder that the engine uses.")
    sources = {SPOOL: spool, ORIGINALS: originals_of(database)}
    with _appearing(to) as copy, _failures(copy, source=database):
        for folder, source in sources.items():
            (copy / folder).mkdir()
            _take(source, copy / folder, _names(source))
        for _ in range(_TRIES):
            needed = _snapshot(database, copy / BASE)
            gone = [_take(source, copy / folder, needed[folder]) for folder, source in sources.items()]
            if not any(gone):
                break
        else:
            if not damaged:
                missing = ", ".join(sorted(set.union(*gone))[:_NAMED])
                why = f"files that belong to it are missing: {missing}"
                raise BackupRefused(f"{database}: {why}. {_DAMAGED}")
        left_out = _leave_out(copy) if damaged else []
        for folder, names in needed.items():
            for name in _names(copy / folder) - names:
                (copy / folder / name).unlink()
        if keys.is_file():
            shutil.copyfile(keys, copy / KEYS)
        backup = _read_back(copy, left_out)
        (copy / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(backup)))
        for path in sorted(copy.rglob("*")):
            sync(path)
    return backup


def restore(copy: Path, database: Path, spool: Path, keys: Path) -> Backup:
    """Create a base from a backup, or complete an interrupted restore. Blocks. Existing keys stay.

    Raises:
        BackupRefused: the folder is not a backup or is damaged, or a base exists.
        BaseRefused: another process is creating the base.
    """
    try:
        manifest = msgspec.json.decode((copy / MANIFEST).read_bytes(), type=Backup)
    except (OSError, msgspec.MsgspecError) as error:
        raise BackupRefused(f"{copy}: this is no copy of a base ({error})") from error
    if manifest.layout > len(MIGRATIONS):
        raise BackupRefused(f"{copy}: a later version of kb has made it. Install that one.")
    _check_free(database, spool)
    with _failures(copy):
        found = {name: sha256_of(copy / name) for name in manifest.files}
    if wrong := sorted(name for name, digest in manifest.files.items() if found[name] != digest):
        raise BackupRefused(f"{copy}: damaged, or changed since it was made: {', '.join(wrong[:_NAMED])}")
    with _failures(database):
        database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with made_at(database) as database, _failures(database):
        _check_free(database, spool)
        new, originals = restoring(database), originals_of(database)
        new.touch(mode=PRIVATE)
        sync(database.parent)  # from here on no engine creates a new base at this path
        for folder in (spool, originals):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(folder_of(database), ignore_errors=True)
        new_keys = keys.with_name(f"{keys.name}.restored")
        for name in manifest.files:
            folder = originals if name.startswith(f"{ORIGINALS}/") else spool
            path = {BASE: new, KEYS: new_keys}.get(name, folder / Path(name).name)
            shutil.copyfile(copy / name, path)
            path.chmod(PRIVATE)
            sync(path)
        if keys.exists():
            new_keys.unlink(missing_ok=True)
        elif KEYS in manifest.files:
            new_keys.rename(keys)
            sync(keys.parent)
        new.rename(database)  # last, so that an engine finds a complete base or none
        sync(database.parent)
    return manifest


def _check_free(database: Path, spool: Path) -> None:
    """Raise BackupRefused if files are in the way, other than those of an interrupted restore."""
    paths = [database, database.with_name(database.name + "-wal")]
    if not restoring(database.resolve()).exists():
        paths += [spool, originals_of(database)]
    for path in paths:
        if path.is_file() or _names(path):
            raise BackupRefused(f"{path} is there already. Move it away, or name another data folder.")


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to `folder` on success and removed on failure."""
    if folder.exists():
        raise BackupRefused(f"{folder} is there already. Name a new folder.")
    partial = folder.with_name(folder.name + ".partial")
    with _failures(folder):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700, parents=True)
    try:
        yield partial
        with _failures(folder):
            partial.rename(folder)
            sync(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def _failures(path: Path, source: Path | None = None) -> Iterator[None]:
    try:
        yield
    except (apsw.CorruptError, apsw.NotADBError) as error:
        why = f"its tables are damaged ({error}), and no part of it can be copied"
        raise BackupRefused(
            f"{source or path}: {why}. kb check --repair says what can be repaired."
        ) from error
    except OSError as error:
        raise BackupRefused(f"{error.filename or path}: {error.strerror or error}") from error
    except apsw.Error as error:
        raise BackupRefused(f"{path}: {error}") from error


def _take(source: Path, to: Path, names: set[str]) -> set[str]:
    """Copy the named files that are not there yet; return the names of missing files."""
    gone = set()
    for name in names - _names(to):
        try:
            shutil.copyfile(source / name, to / name)
        except FileNotFoundError:
            (to / name).unlink(missing_ok=True)
            gone.add(name)
    return gone


def _snapshot(database: Path, to: Path) -> dict[str, set[str]]:
    """Copy a snapshot of the base; return the names of the files that it needs, by folder."""
    with closing(apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READWRITE)) as source:
        source.set_busy_timeout(60_000)
        with copied(source, to) as copy:
            if (layout := int(copy.pragma("user_version"))) != len(MIGRATIONS):
                why = f"its layout is number {layout}, that of this version {len(MIGRATIONS)}"
                raise BackupRefused(
                    f"{database}: {why}. Copy it with the version of the engine that uses it."
                )
            if is_unfinished(copy):
                raise BackupRefused(str(BaseUnfinished(database)))
            kept = {sha256 for (sha256,) in rows(copy, "SELECT sha256 FROM originals")}
            return {SPOOL: run_to_end(jobs.spooled(_reading(copy))), ORIGINALS: kept}


def _read_back(copy: Path, left_out: list[str]) -> Backup:
    """Read and verify the whole backup, and return its manifest."""
    with closing(apsw.Connection(str(copy / BASE), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        uploads, originals = _names(copy / SPOOL), _names(copy / ORIGINALS)
        beside = [f"{SPOOL}/{each}" for each in uploads] + [f"{ORIGINALS}/{each}" for each in originals]
        beside += [KEYS] * (copy / KEYS).exists()
        files = {name: sha256_of(copy / name) for name in (BASE, *sorted(beside))}
        problems = damage_of(db)
        if not problems:  # what the pages of a damaged base say is not worth being compared
            problems += [why for _, why in (*_hurt_documents(db), *_hurt_versions(db))]
        problems += [
            f"the kept file {name} is not what was sent"
            for name in sorted(originals)
            if files[f"{ORIGINALS}/{name}"] != name
        ]
        if problems:
            raise BackupRefused(f"the base is damaged: {'; '.join(problems[:_NAMED])}. {_DAMAGED}")
        failed = value(db, "SELECT count(*) FROM jobs WHERE retryable AND spool IS NOT NULL")
        return Backup(
            made_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            layout=int(db.pragma("user_version")),
            documents=value(db, "SELECT count(*) FROM documents"),
            chunks=value(db, "SELECT count(*) FROM chunks"),
            uploads=len(uploads) - failed,
            files=files,
            originals=len(originals),
            failed_uploads=failed,
            left_out=left_out,
        )


def _hurt_documents(db: apsw.Connection) -> Iterator[tuple[int, str]]:
    """The documents whose texts are not what they were, and why."""
    read = _reading(db)
    for (number,) in rows(db, "SELECT id FROM documents ORDER BY id"):
        document = run_to_end(content.content(read, number))
        if document is None:
            continue
        if not document.has_its_text:
            why = "is gone" if document.text is None else "is not what was sent"
            yield number, f"the text of document {number} {why}"
        elif not document.has_its_passages:
            yield number, f"passages of document {number} are missing, or not what was stored"


def _hurt_versions(db: apsw.Connection) -> Iterator[tuple[int, str]]:
    """The rows of versions whose text is not the one that was kept, and why."""
    read, last = _reading(db), 0
    while True:
        hurt, last = run_to_end(versions.hurt_after(read, last, _PAGE))
        for each in hurt:
            yield each.id, f"the text of version {each.version} of document {each.document_id} is another one"
        if not last:
            return


def _leave_out(copy: Path) -> list[str]:
    """Take out of a copy what is damaged; what that was.

    A document goes whole where its texts are hurt, a version likewise. A document without its kept
    file stays, as its passages are whole; a job whose upload is missing goes, as it could only fail.
    Raises BackupRefused: the tables are damaged, and not an index alone.
    """
    left_out = []
    with closing(apsw.Connection(str(copy / BASE), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
        db.pragma("foreign_keys", True)
        if (damage := reindexed(db)).left:
            why = "; ".join(damage.left)
            raise BackupRefused(f"the base is damaged: {why}. Its tables are hurt: restore an earlier copy")
        kept = [sha256 for (sha256,) in rows(db, "SELECT sha256 FROM originals")]
        wanted = run_to_end(jobs.spooled(_reading(db)))
        gone = {
            "DELETE FROM documents WHERE id = ?": [*_hurt_documents(db)],
            "DELETE FROM versions WHERE id = ?": [*_hurt_versions(db)],
            "DELETE FROM originals WHERE sha256 = ?": [
                (name, f"the kept file {name} is missing, or is not what was sent")
                for name in kept
                if not (file := copy / ORIGINALS / name).is_file() or sha256_of(file) != name
            ],
            "DELETE FROM jobs WHERE spool = ?": [
                (name, f"the upload {name} is missing, and its job is left out")
                for name in sorted(wanted - _names(copy / SPOOL))
            ],
        }
        with transaction(db):
            for statement, found in gone.items():
                db.executemany(statement, [(key,) for key, _ in found])
                left_out += [why for _, why in found]
            db.execute(_UNUSED_ORIGINALS)
            if left_out:  # an index that keeps its data for itself is built again
                db.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'index_changes'")
        named = {name for (name,) in rows(db, "SELECT sha256 FROM originals")}
        for name in _names(copy / ORIGINALS) - named:
            (copy / ORIGINALS / name).unlink()
    return left_out


def _names(folder: Path) -> set[str]:
    """Return the names of the files in a folder; empty if it does not exist."""
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _reading(db: apsw.Connection) -> SqliteRead:
    return SqliteRead(db, SteadyClock(utc_now, elapsed_seconds))
