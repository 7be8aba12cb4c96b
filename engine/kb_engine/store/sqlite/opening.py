"""Opening a base: owned, made or migrated, with its index; and all its chunks embedded anew.

One process owns a base, by advisory locks, which the system drops with the process. The file that holds the
data is locked, so that no other name of it lets a second process in: one byte far behind all data, for the
open file rather than the process, so that SQLite's own locks are left alone. `<path>.lock` is locked too,
because SQLite's log goes by the name: a file that is put under the name of an open base must not be opened
with the log of the other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw
import numpy as np

from kb_engine.disk import NO_INODES, lacks_inodes
from kb_engine.embed.context import Passage
from kb_engine.index.embedded.index import EmbeddedIndex
from kb_engine.index.port import Vectors
from kb_engine.store.port import (
    MARK,
    REINDEX_BATCH,
    UNLIKE_ITS_NUMBER,
    BaseInUse,
    BaseLinked,
    BaseUnfinished,
    BaseUnwritable,
    EmbedderIdentity,
    NotABase,
    ReindexProgress,
    bound_embedder,
    check_shape,
)
from kb_engine.store.sqlite.connection import VECTOR_TYPE, connect, rows, set_meta, transaction, value
from kb_engine.store.sqlite.schema import is_unfinished, migrate, set_embedder, stored_embedder
from kb_engine.store.sqlite.segments import language_in, open_index

PRIVATE = 0o600
_BEHIND_ALL_DATA = 1 << 62
_FLAGS = os.O_RDWR | os.O_CLOEXEC
_SET_LOCK = getattr(fcntl, "F_OFD_SETLK", None)
"""Absent where the system has no locks of open files; there the name alone is locked."""

_BEGIN = """
DROP TABLE IF EXISTS next_vectors;
CREATE TABLE next_vectors (
  chunk_id INTEGER PRIMARY KEY REFERENCES chunks (id) ON DELETE CASCADE,
  vector BLOB NOT NULL
)
"""
_BATCH_OF_MISSING = (
    "SELECT c.id, d.title, c.heading, c.text FROM chunks c JOIN documents d ON d.id = c.document_id "
    "WHERE c.id NOT IN (SELECT chunk_id FROM next_vectors) ORDER BY c.id LIMIT ?"
)
_SWITCH = """
DELETE FROM vectors;
INSERT INTO vectors SELECT chunk_id, vector FROM next_vectors;
UPDATE versions SET vectors = NULL;
DELETE FROM index_segments;
DROP TABLE next_vectors;
DELETE FROM meta WHERE name = 'next_embedder';
UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'index_changes';
"""
# The last line leaves a gap in the log of changes: an index that keeps its data for itself is built again.


def own(path: Path, *, unfinished: bool = False) -> BaseLock:
    """Keep all others out of the base at `path`, which is made where there is none. Raises `BaseRefused`.

    `unfinished` marks one that is made as the target of a migration.
    """
    with _refusals(path):
        return BaseLock(path, unfinished=unfinished)


@contextmanager
def made_at(path: Path) -> Iterator[Path]:
    """The real path of a base that is to be made; all others are kept out of it. Raises `BaseRefused`."""
    name = _own_name(path.resolve())
    try:
        yield path.resolve()
    finally:
        os.close(name)


def restoring(path: Path) -> Path:
    """What `kb restore` makes before anything else, and gives the name of the base when that is whole."""
    return path.with_name(path.name + ".restored")


def prepare(
    path: Path, embedder: EmbedderIdentity, *, unfinished: bool = False
) -> tuple[EmbeddedIndex, EmbedderIdentity]:
    """Bring the base to today's layout, and its index to what it holds; with the embedder that fills it.

    Raises:
        BaseRefused: one of its kinds.
    """
    with latest(path, unfinished=unfinished) as db:
        stored = stored_embedder(db)
        bound = bound_embedder(path, stored, embedder)
        if bound is not stored:
            with transaction(db):
                set_embedder(db, bound)
        return EmbeddedIndex(open_index(db, path, bound.dimensions)), bound


def filled_by(path: Path) -> EmbedderIdentity:
    """The embedder that filled a base, which must be there. Raises `BaseRefused`."""
    _check_there(path)
    lock = own(path)
    try:
        with latest(lock.path) as db:
            if (stored := stored_embedder(db)) is None:
                raise NotABase(path, "no engine has used it. Name the base that the engine uses.")
            return stored
    finally:
        lock.release()


def _check_there(path: Path) -> None:
    if not path.exists():
        _check_not_restoring(path.resolve())
        raise NotABase(path, "there is none. Name the base that the engine uses.")


def _check_not_restoring(path: Path) -> None:
    if (new := restoring(path)).exists():
        raise BaseUnfinished(new, "kb restore")


@contextmanager
def latest(path: Path, *, unfinished: bool = False) -> Iterator[apsw.Connection]:
    """A connection to the base, which is owned, migrated; closed in the end. Raises `BaseRefused`.

    `unfinished` takes one too that holds a part of another base, to complete it.
    """
    with _refusals(path):
        db = connect(path)
        try:
            migrate(db, path)
            if is_unfinished(db) and not unfinished:
                raise BaseUnfinished(path)
            yield db
        finally:
            db.close()


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except (apsw.NotADBError, apsw.CorruptError) as error:
        why = f"it is no SQLite file, or it is damaged ({error}). Restore it from a copy."
        raise NotABase(path, why) from error
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, OSError) as error:
        if not isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError) and lacks_inodes(path):
            raise BaseUnwritable(path, NO_INODES) from error
        raise BaseUnwritable(path, f"{error}. Give this user the right to write it.") from error
    except (apsw.FullError, apsw.IOError) as error:
        raise BaseUnwritable(path, f"{error}. Look at the disk: is it full, or failing?") from error
    except apsw.BusyError as error:
        raise BaseInUse(path, None) from error
    except (apsw.SQLError, apsw.ConstraintError) as error:
        raise NotABase(path, f"{UNLIKE_ITS_NUMBER} ({error}). Restore it from a copy.") from error


class BaseLock:
    """The locks on the base at `path`, held from construction to `release`; the base is made where none is.

    `path` is the real one, without symbolic links. `<path>.lock` holds the owner's number.
    """

    def __init__(self, path: Path, *, unfinished: bool = False) -> None:
        self.path = path.resolve()
        # Held to the end: closing any descriptor of the file would drop the locks of SQLite in this process.
        self._held = [_own_name(self.path)]
        try:
            if not self.path.exists():
                _check_not_restoring(self.path)
                _make(self.path, unfinished=unfinished)
            self._held.append(_own_file(self.path))
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let go. The file stays: removing it would let two processes lock two files of one name."""
        while self._held:
            os.close(self._held.pop())


def _own_name(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path.with_name(path.name + ".lock"), _FLAGS | os.O_CREAT, PRIVATE)
    except OSError as error:
        why = f"{error.strerror}: {error.filename}. Choose a folder that this user may write."
        raise BaseUnwritable(path, why) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = os.pread(file, 20, 0).strip()
        os.close(file)
        raise BaseInUse(path, int(pid) if pid.isdigit() else None) from error
    with suppress(OSError):  # the number is for people alone, and the disk may be full
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
    return file


def _make(path: Path, *, unfinished: bool) -> None:
    """A base without a table but the mark, whole or not at all.

    A file without a byte is never one that was just made.
    """
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    # What people note down is for them alone; SQLite gives its other files the same mode.
    new.touch(mode=PRIVATE)
    with closing(connect(new)) as db:
        if unfinished:
            db.execute(MARK)
    new.rename(path)


def _own_file(path: Path) -> int:
    file = os.open(path, _FLAGS)
    try:
        _lock_byte(path, file)
        found = os.fstat(file)
        if found.st_size == 0:
            why = "it is an empty file. Restore it from a copy, or remove it to begin a new base."
            raise NotABase(path, why)
        if found.st_nlink > 1:
            raise BaseLinked(path)
    except BaseException:
        os.close(file)
        raise
    return file


def _lock_byte(path: Path, file: int) -> None:
    if _SET_LOCK is None:
        return
    # struct flock: type, whence, start, length, process.
    wanted = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _BEHIND_ALL_DATA, 1, 0)
    try:
        fcntl.fcntl(file, _SET_LOCK, wanted)
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            raise BaseInUse(path, None) from error
        if error.errno != errno.EINVAL:  # the system knows of no such locks after all
            raise


def reindex_sqlite(
    path: Path,
    *,
    embedder: EmbedderIdentity,
    embed: Callable[[Sequence[Passage]], Vectors],
    progress: ReindexProgress = lambda _done, _total: None,
) -> int:
    """Embed all chunks of a base again and make `embedder` its own; how many chunks. Blocks.

    Documents whose language is not known, as those of earlier layouts, have it found.

    Chunks keep their text: those that are longer than the new embedder's window are embedded in part.
    `progress` is called with how many of how many are done.

    The new vectors gather beside the old ones, a batch a transaction, so that what was stopped goes on where
    it was. Until the switch the base opens with its old embedder as if nothing had begun.

    Raises:
        BaseRefused: the base is in use, or is none.
    """
    _check_there(path)
    lock = own(path)
    try:
        with latest(lock.path) as db:
            total: int = value(db, "SELECT count(*) FROM chunks")
            # What was begun for this embedder goes on; what was begun for another is dropped.
            wanted = f"{embedder.dimensions} {embedder.note}"
            if value(db, "SELECT value FROM meta WHERE name = 'next_embedder'") != wanted:
                with transaction(db):
                    db.execute(_BEGIN)
                    set_meta(db, "next_embedder", wanted)
            done: int = value(db, "SELECT count(*) FROM next_vectors")
            while found := rows(db, _BATCH_OF_MISSING, (REINDEX_BATCH,)):
                progress(done, total)
                vectors = embed([Passage(*each) for _, *each in found])
                check_shape(vectors, len(found), embedder)
                raw = [vector.tobytes() for vector in np.ascontiguousarray(vectors, VECTOR_TYPE)]
                new = [(chunk_id, vector) for (chunk_id, *_), vector in zip(found, raw, strict=True)]
                with transaction(db):
                    db.executemany("INSERT INTO next_vectors (chunk_id, vector) VALUES (?, ?)", new)
                done += len(found)
            with transaction(db):
                db.execute(_SWITCH)
                _find_languages(db)
                set_embedder(db, embedder)
            progress(total, total)
            return total
    finally:
        lock.release()


def _find_languages(db: apsw.Connection) -> None:
    for document_id, title in rows(db, "SELECT id, title FROM documents WHERE language IS NULL"):
        if (language := language_in(db, document_id, title)) is not None:
            db.execute("UPDATE documents SET language = ? WHERE id = ?", (language, document_id))
