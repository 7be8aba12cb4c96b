"""Opening a base: made or migrated first, its vectors read, every refusal with words for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import numpy as np

from kb_engine.index.embedded.vectors import Batch, Changes, ExactVectors
from kb_engine.store.failures import UNLIKE_ITS_NUMBER, BaseInUse, BaseUnwritable, NotABase
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.sqlite.connection import connect, value
from kb_engine.store.sqlite.content import VECTOR_TYPE
from kb_engine.store.sqlite.lock import BaseLock
from kb_engine.store.sqlite.schema import bind_embedder, migrate


def own(path: Path) -> BaseLock:
    """Keep all others out of the base at `path`, which is made where there is none. Raises `BaseRefused`."""
    with _refusals(path):
        return BaseLock(path)


def prepare(path: Path, embedder: EmbedderIdentity) -> ExactVectors:
    """Bring the base to today's layout and read its vectors into memory.

    Raises:
        BaseRefused: one of its kinds.
    """
    with latest(path) as db:
        bound = bind_embedder(db, path, embedder)
        return _load(db, path, bound.dimensions)


@contextmanager
def latest(path: Path) -> Iterator[apsw.Connection]:
    """A connection to the base, which is owned, migrated; closed in the end. Raises `BaseRefused`."""
    with _refusals(path):
        db = connect(path)
        try:
            migrate(db, path)
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
        raise BaseUnwritable(path, f"{error}. Give this user the right to write it.") from error
    except (apsw.FullError, apsw.IOError) as error:
        raise BaseUnwritable(path, f"{error}. Look at the disk: is it full, or failing?") from error
    except apsw.BusyError as error:
        raise BaseInUse(path, None) from error
    except (apsw.SQLError, apsw.ConstraintError) as error:
        raise NotABase(path, f"{UNLIKE_ITS_NUMBER} ({error}). Restore it from a copy.") from error


def _load(db: apsw.Connection, path: Path, dimensions: int) -> ExactVectors:
    count = value(db, "SELECT count(*) FROM vectors")
    index = ExactVectors(dimensions, capacity=count)
    ids = np.empty((2, count), np.int64)
    vectors = np.empty((count, dimensions), np.float32)
    found = db.execute(
        "SELECT c.document_id, v.chunk_id, v.vector FROM vectors v JOIN chunks c ON c.id = v.chunk_id "
        "ORDER BY v.chunk_id"
    )
    for place, (document_id, chunk_id, vector) in enumerate(found):
        if len(vector) != vectors[0].nbytes:
            raise NotABase(path, f"the vector of chunk {chunk_id} is damaged. Restore it from a copy.")
        ids[:, place] = document_id, chunk_id
        vectors[place] = np.frombuffer(vector, VECTOR_TYPE)
    index.publish(index.stage(Changes(added=[Batch(ids[0], ids[1], vectors)])))
    return index
