"""Engines with a breach of the access scope: the comparison of twins detects each.

Each breach removes one check of the access scope from the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from msgspec import UNSET

from kb_engine.api import documents as documents_api
from kb_engine.api import search as search_api
from kb_engine.api.engine import StateApi
from kb_engine.index.embedded import selection
from kb_engine.store.repository import collections, documents, jobs, search, sources, versions
from kb_engine.store.repository.transaction import Read
from tests.contract.test_access import ATTEMPTS, Pair, each_as_built, try_all
from tests.support.twins import REACHES

pytestmark = pytest.mark.process

Breach = Callable[[], AbstractContextManager[Any]]


def everywhere(*_: object) -> tuple[str, tuple[()]]:
    """Return no condition."""
    return "", ()


def in_all(_module: Any, name: str) -> Breach:
    """Return a breach: a function of a repository runs without its caller's access scope."""
    whole = getattr(_module, name)

    async def unbounded(read: Read, *args: Any, **kwargs: Any) -> Any:
        reach, read.reach = read.reach, None
        try:
            return await whole(read, *args, **kwargs)
        finally:
            read.reach = reach

    return lambda: patch.object(_module, name, unbounded)


def attribute(where: Any, name: str, other: Any) -> Breach:
    return lambda: patch.object(where, name, other)


def words_of_all() -> AbstractContextManager[Any]:
    whole = selection._statistics
    return patch.object(
        selection,
        "_statistics",
        lambda state, terms, _counted: whole(state, terms, [part.alive for part in state.parts]),
    )


def status_of_all() -> AbstractContextManager[Any]:
    async def status(self: StateApi, _incoming: object) -> Any:
        issues = await self._read()
        return self._status(self._counts, self._storage, issues, UNSET)

    return patch.object(StateApi, "get_status", status)


def searched_by_all(where: Any, name: str) -> Breach:
    """Return a breach: the selections that a function makes have no access scope."""
    whole = getattr(where, name)
    return lambda: patch.object(
        where, name, lambda *args, **fields: replace(whole(*args, **fields), reach=None)
    )


def for_anybody(name: str) -> Breach:
    whole = getattr(search_api, name)
    return lambda: patch.object(search_api, name, lambda *args: whole(*args[:-1], None))


BREACHES: dict[str, Breach] = {
    "documents are everybody's": attribute(Read, "within", everywhere),
    "jobs are everybody's": attribute(Read, "job_within", everywhere),
    "versions are everybody's": attribute(Read, "version_within", everywhere),
    "documents are found by all": in_all(documents, "_fields"),
    "documents are listed for all": in_all(documents, "page"),
    "citations are checked for all": in_all(documents, "check_citation"),
    "tags are counted for all": in_all(documents, "tag_page"),
    "searches look everywhere": searched_by_all(search_api, "selection_of"),
    "vector searches look everywhere": searched_by_all(search_api, "vector_selection_of"),
    "similar notes are looked up everywhere": searched_by_all(documents_api, "Selection"),
    "words are counted everywhere": words_of_all,
    "a cursor leads anywhere": in_all(search, "at"),
    "a cursor is anybody's": for_anybody("opened"),
    "jobs are found by all": in_all(jobs, "find"),
    "jobs are listed for all": in_all(jobs, "page"),
    "jobs are cancelled by all": in_all(jobs, "cancel"),
    "versions are listed for all": in_all(versions, "page"),
    "versions are found by all": in_all(versions, "find"),
    "versions are read by all": in_all(versions, "detail"),
    "versions are purged by all": in_all(versions, "_document"),
    "the trash is everybody's": in_all(versions, "trash"),
    "anything may be a duplicate": in_all(sources, "duplicate_of"),
    "anything may be replaced": in_all(sources, "holders"),
    "collections are listed for all": in_all(collections, "every"),
    "collections are found by all": in_all(collections, "name_of"),
    "collections have names for all": in_all(collections, "ids"),
    "collections are added up for all": in_all(collections, "_stats"),
    "collections are described by all": in_all(collections, "put"),
    "the status is of all": status_of_all,
    "anything is taken in anywhere": attribute(documents_api, "check_submission", lambda *_: None),
    "any tag is given and taken": attribute(documents, "check_changes", lambda *_: None),
    "the base is cleared by all": attribute(documents, "check_whole", lambda *_: None),
}


@pytest.fixture(scope="module")
def as_built() -> Iterator[Callable[[], AbstractContextManager[Pair]]]:
    """A function that yields pairs of bases built by unbroken engines."""
    with each_as_built("sqlite", REACHES["a tag that is no collection"]) as made:
        yield made


@pytest.mark.parametrize("breach", BREACHES.values(), ids=BREACHES.keys())
def test_a_breach_is_noticed(breach: Breach, as_built: Callable[[], AbstractContextManager[Pair]]) -> None:
    with breach(), pytest.raises(AssertionError), as_built() as pair:
        try_all(pair, ATTEMPTS)
