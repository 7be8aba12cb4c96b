"""The program of a search process: it answers the queries of the engine that started it (`search_processes`).

    python -m kb_engine.store.sqlite.search_process DESCRIPTOR PATH

It ends with the connection, so also when the engine is killed. It reads the base and writes nothing.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import assert_never

import apsw

from kb_engine.index.embedded import selection
from kb_engine.index.embedded.array_file import UnreadableIndexFile
from kb_engine.index.embedded.block import open_segment
from kb_engine.index.embedded.index import Part, State
from kb_engine.store.clock import SteadyClock, elapsed_seconds
from kb_engine.store.port import Found, Query
from kb_engine.store.repository import search
from kb_engine.store.sqlite.connection import connect, roll_back, value
from kb_engine.store.sqlite.reading import SqliteRead, look_up, run_to_end
from kb_engine.store.sqlite.search_processes import DECLINED, HEAD, MAPPED, IndexFiles, encode_found
from kb_engine.store.store import utc_now

CACHE_KIB = 8 * 1024


class Searcher:
    """A connection to the base, and a state of its index with its generation."""

    def __init__(self, path: Path) -> None:
        self._db = connect(path)
        self._db.pragma("cache_size", -CACHE_KIB)
        self._db.pragma("query_only", True)
        self._clock = SteadyClock(utc_now, elapsed_seconds)
        self._state = State(0)
        self._generation = -1

    def answer(self, question: Query | IndexFiles) -> bytes:
        match question:
            case IndexFiles():
                return MAPPED if self._take(question) else DECLINED
            case Query():
                found = self._found(question)
                return DECLINED if found is None else encode_found(found)
            case _:
                assert_never(question)

    def _take(self, files: IndexFiles) -> bool:
        """Map the files of a state; False if one of them was replaced meanwhile."""
        if files.parts is not None:
            try:
                parts = [
                    Part(open_segment(file, files.dimensions), file.name, alive)
                    for file, alive in files.parts
                ]
            except (UnreadableIndexFile, OSError):
                return False
            self._state = State(files.dimensions, tuple(parts))
        self._generation = files.generation
        return True

    def _found(self, query: Query) -> Found | None:
        """Return the results; None if the base is not of the state's generation, or must be repaired."""
        db, state = self._db, self._state
        try:
            db.execute("BEGIN")
            if value(db, SqliteRead.generation) != self._generation:
                return None
            read = SqliteRead(db, self._clock)
            read.reach = query.selection.reach
            originals = partial(selection.originals, db, state.dimensions)
            found = look_up(read, state, query).best(query, originals)
            return run_to_end(search.found(read, query, found))
        except (apsw.Error, selection.VectorsLost):
            return None
        finally:
            roll_back(db)


def serve(connection: socket.socket, searcher: Searcher) -> None:
    """Answer until the connection ends, possibly in the middle of a question or an answer."""
    with connection.makefile("rb") as questions, suppress(ConnectionError):
        while len(head := questions.read(HEAD.size)) == HEAD.size:
            (length,) = HEAD.unpack(head)
            if len(message := questions.read(length)) < length:
                return
            answer = searcher.answer(pickle.loads(message))  # noqa: S301 - sent by the engine
            connection.sendall(HEAD.pack(len(answer)) + answer)


def offer_memory() -> None:
    """Let the kernel end this process, and not the engine, where memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


if __name__ == "__main__":
    offer_memory()
    serve(socket.socket(fileno=int(sys.argv[1])), Searcher(Path(sys.argv[2])))
    os._exit(0)  # without closing the base: the last connection to it would move its log
