"""Opening a base: lock it, create or migrate it, open its index; and re-embed all its chunks.

One process owns a base, by advisory locks, which the operating system releases when the process ends. The
data file is locked, so that a second process cannot open it by another name: one byte far beyond all data,
with an open-file-description lock, which does not interfere with SQLite's own locks. `<path>.lock` is locked
too, because SQLite finds its write-ahead log by the name: a file moved to the name of an open base must not
be opened with the log of the open one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import apsw
import numpy as np

from kb_engine.disk import NO_INODES, lacks_inodes
from kb_engine.embed.context import Passage
from kb_engine.index.embedded.index import EmbeddedIndex
from kb_engine.index.port import Vectors
from kb_engine.store import port
from kb_engine.store.sqlite.connection import VECTOR_TYPE, connect, rows, set_meta, transaction, value
from kb_engine.store.sqlite.copying import PRIVATE
from kb_engine.store.sqlite.reading import SqliteRead
from kb_engine.store.sqlite.schema import is_unfinished, migrate, set_embedder, stored_embedder
from kb_engine.store.sqlite.segments import language_in, open_index

_ORIGINALS = "originals_bytes"  # the bound of originals of a base that was created with one
_BEHIND_ALL_DATA = 1 << 62
_FLAGS = os.O_RDWR | os.O_CLOEXEC
_SET_LOCK = getattr(fcntl, "F_OFD_SETLK", None)
"""None on systems without open-file-description locks; there only `<path>.lock` is locked."""

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
# The last line leaves a gap in the log of changes, so that a separate index is rebuilt.


def own(path: Path, *, unfinished: bool = False) -> BaseLock:
    """Lock the base at `path` against other processes; create it if it does not exist. Raises `BaseRefused`.

    With `unfinished` a new base is marked as the target of a migration.
    """
    with _refusals(path):
        return BaseLock(path, unfinished=unfinished)


@contextmanager
def made_at(path: Path) -> Iterator[Path]:
    """Lock a base that is to be created, and yield its real path. Raises `BaseRefused`."""
    name = _own_name(path.resolve())
    try:
        yield path.resolve()
    finally:
        os.close(name)


def restoring(path: Path) -> Path:
    """The temporary file that `kb restore` creates first, and renames to the base at the end."""
    return path.with_name(path.name + ".restored")


def prepare(
    path: Path,
    embedder: port.EmbedderIdentity,
    bounds: port.Bounds = port.DEFAULT_BOUNDS,
    *,
    unfinished: bool = False,
) -> tuple[EmbeddedIndex, port.EmbedderIdentity, port.Bounds]:
    """Migrate the base to the current layout and update its index; return the index, the base's embedder, and
    the bounds with its own bound of originals where they leave it to the base.
    Raises BaseRefused: the base cannot be opened; the subclass gives the reason.
    """
    with latest(path, unfinished=unfinished) as db:
        stored = stored_embedder(db)
        bound = port.bound_embedder(path, stored, embedder)
        if bound is not stored:
            with transaction(db):
                set_embedder(db, bound)
                if stored is None and bounds.originals_bytes:
                    set_meta(db, _ORIGINALS, str(bounds.originals_bytes))
        if bounds.originals is None:
            stored_bytes = int(
                value(db, "SELECT coalesce(max(value), 0) FROM meta WHERE name = ?", (_ORIGINALS,))
            )
            most = bounds.originals_bytes or stored_bytes
            bounds = replace(bounds, originals=stored_bytes > 0, originals_bytes=most)
        state = open_index(db, path, bound.dimensions)
        return EmbeddedIndex(state, value(db, SqliteRead.generation)), bound, bounds


def filled_by(path: Path) -> port.EmbedderIdentity:
    """Return the embedder that filled an existing base. Raises `BaseRefused`."""
    _check_there(path)
    with owned(path) as db:
        return port.check_used(path, stored_embedder(db))


@contextmanager
def owned(path: Path) -> Iterator[apsw.Connection]:
    """Lock a base, and yield a connection to it after migrating it. Raises `BaseRefused`."""
    lock = own(path)
    try:
        with latest(lock.path) as db:
            yield db
    finally:
        lock.release()


def _check_there(path: Path) -> None:
    if not path.exists():
        _check_not_restoring(path.resolve())
        raise port.NotABase(path, "there is none. Name the base that the engine uses.")


def _check_not_restoring(path: Path) -> None:
    if (new := restoring(path)).exists():
        raise port.BaseUnfinished(new, "kb restore")


@contextmanager
def latest(path: Path, *, unfinished: bool = False) -> Iterator[apsw.Connection]:
    """Yield a connection to the locked base after migrating it. Raises `BaseRefused`.

    With `unfinished` a base that holds a part of another one is accepted, to complete it.
    """
    with _refusals(path):
        db = connect(path)
        try:
            migrate(db, path)
            if is_unfinished(db) and not unfinished:
                raise port.BaseUnfinished(path)
            yield db
        finally:
            db.close()


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except (apsw.NotADBError, apsw.CorruptError) as error:
        why = f"it is no SQLite file, or it is damaged ({error}). Restore it from a copy."
        raise port.NotABase(path, why) from error
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, OSError) as error:
        if not isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError) and lacks_inodes(path):
            raise port.BaseUnwritable(path, NO_INODES) from error
        raise port.BaseUnwritable(path, f"{error}. Give this user the right to write it.") from error
    except (apsw.FullError, apsw.IOError) as error:
        raise port.BaseUnwritable(path, f"{error}. Look at the disk: is it full, or failing?") from error
    except apsw.BusyError as error:
        raise port.BaseInUse(path) from error
    except (apsw.SQLError, apsw.ConstraintError) as error:
        raise port.NotABase(path, f"{port.UNLIKE_ITS_NUMBER} ({error}). Restore it from a copy.") from error


class BaseLock:
    """The locks on the base at `path`, held from construction to `release`. A missing base is created.

    `path` is the real path, without symbolic links. `<path>.lock` contains the owner's process id.
    """

    def __init__(self, path: Path, *, unfinished: bool = False) -> None:
        self.path = path.resolve()
        # Kept open: closing any descriptor of the file would release the locks of SQLite in this process
        # (POSIX).
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
        """Release the locks. The lock file stays, or two processes could lock different files."""
        while self._held:
            os.close(self._held.pop())


def _own_name(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path.with_name(path.name + ".lock"), _FLAGS | os.O_CREAT, PRIVATE)
    except OSError as error:
        why = f"{error.strerror}: {error.filename}. Choose a folder that this user may write."
        raise port.BaseUnwritable(path, why) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        left = os.pread(file, 20, 0).strip()
        os.close(file)
        pid = int(left) if left.isdigit() else None
        raise port.BaseInUse(path, pid, _supervisor(pid)) from error
    with suppress(OSError):  # the process id is informative only, and the disk may be full
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
    return file


def _supervisor(pid: int | None) -> int | None:
    """Return the parent of a process that `kb up` started, where the system shows it."""
    with suppress(OSError, ValueError, IndexError):
        process = Path(f"/proc/{pid}")
        if b"--supervised" in (process / "cmdline").read_bytes().split(b"\0"):
            return int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
    return None


def _make(path: Path, *, unfinished: bool) -> None:
    """Create a base without tables except the mark, atomically.

    So an empty file is never a newly created base.
    """
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    # Notes are private to the user; SQLite gives its other files the same mode.
    new.touch(mode=PRIVATE)
    with closing(connect(new)) as db:
        if unfinished:
            db.execute(port.MARK)
    new.rename(path)


def _own_file(path: Path) -> int:
    file = os.open(path, _FLAGS)
    try:
        _lock_byte(path, file)
        found = os.fstat(file)
        if found.st_size == 0:
            why = "it is an empty file. Restore it from a copy, or remove it to begin a new base."
            raise port.NotABase(path, why)
        if found.st_nlink > 1:
            raise port.BaseLinked(path)
    except BaseException:
        os.close(file)
        raise
    return file


def _lock_byte(path: Path, file: int) -> None:
    if _SET_LOCK is None:
        return
    # struct flock: type, whence, start, length, process id.
    wanted = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _BEHIND_ALL_DATA, 1, 0)
    try:
        fcntl.fcntl(file, _SET_LOCK, wanted)
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            raise port.BaseInUse(path) from error
        if error.errno != errno.EINVAL:  # the system does not support such locks after all
            raise


def reindex_sqlite(
    path: Path,
    *,
    embedder: port.EmbedderIdentity,
    embed: Callable[[Sequence[Passage]], Vectors],
    progress: port.ReindexProgress = lambda _done, _total: None,
) -> int:
    """Re-embed all chunks of a base with `embedder` and record it; return the number of chunks. Blocks.

    The language of documents without one, as in earlier layouts, is detected as well.

    Chunks keep their text; a chunk longer than the new embedder's window is embedded in part. `progress` is
    called with the number done and the total.

    The new vectors are collected in a separate table, one batch per transaction, so that an interrupted run
    can be continued. Until the switch the base opens with its old embedder, unaffected.
    Raises BaseRefused: the base is in use, or is not a base.
    """
    _check_there(path)
    with owned(path) as db:
        total: int = value(db, "SELECT count(*) FROM chunks")
        # A run begun for this embedder continues; one begun for a different embedder is dropped.
        wanted = f"{embedder.dimensions} {embedder.note}"
        if value(db, "SELECT value FROM meta WHERE name = 'next_embedder'") != wanted:
            with transaction(db):
                db.execute(_BEGIN)
                set_meta(db, "next_embedder", wanted)
        done: int = value(db, "SELECT count(*) FROM next_vectors")
        while found := rows(db, _BATCH_OF_MISSING, (port.REINDEX_BATCH,)):
            progress(done, total)
            vectors = embed([Passage(*each) for _, *each in found])
            port.check_shape(vectors, len(found), embedder)
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


def _find_languages(db: apsw.Connection) -> None:
    for document_id, title in rows(db, "SELECT id, title FROM documents WHERE language IS NULL"):
        if (language := language_in(db, document_id, title)) is not None:
            db.execute("UPDATE documents SET language = ? WHERE id = ?", (language, document_id))
