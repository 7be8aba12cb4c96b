"""Copy of a database into another one, of the same kind or another, complete and unchanged.

check for unfinished jobs ─▶ mark ─▶ compare existing rows ─▶ copy missing rows
                                      remove the mark ◀─ compare all rows ◀─┘

Nothing is embedded again: the vectors are copied, and the target gets the same embedder. Rows that an earlier
run has copied must equal the source, so that an interrupted migration can be repeated, and a target with
other data is refused. The target carries a mark until the last step, and is not opened for any other use
meanwhile (`BaseUnfinished`). A new target is marked first of all; an existing one once its content is known
to be a part of the source.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from kb_contracts.api.errors import EngineError
from kb_engine.composition import filled_by, open_store
from kb_engine.settings import EngineSettings
from kb_engine.spool import Spool
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.repository import originals, state, transfer
from kb_engine.store.store import Store

BATCH = 16  # documents per transaction

Progress = Callable[[str, int, int], None]  # called with the current step, the items done and their total


class MigrationRefused(Exception):
    """The migration is impossible or failed; the message says why and how to proceed."""


class Migrated(msgspec.Struct, frozen=True):
    """Content of the target. `copied` counts the documents of this run, `files` the original files kept;
    `digest` is a SHA-256 over everything."""

    documents: int
    copied: int
    passages: int
    versions: int
    collections: int
    files: int
    embedder: str
    digest: str


@dataclass(frozen=True, slots=True)
class _Item:
    """A document (by its number) or a row of a table (by its key)."""

    table: str
    key: tuple[Any, ...]

    def __str__(self) -> str:
        what = {"documents": "document", "versions": "version", "collections": "collection"}[self.table]
        return " ".join([what, *map(str, self.key)])


async def migrate(source: EngineSettings, target: EngineSettings, progress: Progress) -> Migrated:
    """Copy the database of `source` into that of `target`, which is empty or holds a part of the source.

    Raises:
        MigrationRefused: jobs are unfinished, the target has other data, or the two differ in the end.
        BaseRefused, StartError: one of the databases cannot be opened.
    """
    if (source.address or source.database.resolve()) == (target.address or target.database.resolve()):
        raise MigrationRefused("source and target are the same base. Name another target.")
    async with AsyncExitStack() as stack:
        identity = await filled_by(source)
        one, _ = await stack.enter_async_context(_opened(source, identity))
        await _check_at_rest(one)
        two, spool = await stack.enter_async_context(_opened(target, identity, unfinished=True))
        if await two.read(transfer.jobs_by_status):
            raise MigrationRefused("an engine has used the target. Name a new one.")
        items = await _items(one)
        missing = await _missing(one, two, items, progress)
        await two.write(transfer.begin)
        await two.write(
            transfer.continue_from,
            await one.read(transfer.last_document),
            # One more than the source's, so that a separate index that followed the source is rebuilt.
            await one.read(state.generation) + 1,
        )
        await _copy(one, two, missing, progress)
        files = await _copy_files(one, two, spool, progress)
        digest = await _compared(one, two, items, progress)
        await two.write(transfer.end)
        counts = await two.read(state.counts)
        return Migrated(
            documents=counts.documents.total,
            copied=sum(item.table == "documents" for item in missing),
            passages=counts.chunks,
            versions=sum(item.table == "versions" for item in items),
            collections=sum(item.table == "collections" for item in items),
            files=files,
            embedder=identity.name,
            digest=digest,
        )


@asynccontextmanager
async def _opened(
    settings: EngineSettings, identity: EmbedderIdentity, *, unfinished: bool = False
) -> AsyncIterator[tuple[Store, Spool]]:
    """Open a database without its separate index, which an engine updates when it opens the database."""
    alone = msgspec.structs.replace(settings, index="")
    store, spool = await open_store(alone, identity, unfinished=unfinished)
    try:
        yield store, spool
    finally:
        await store.close()


async def _check_at_rest(one: Store) -> None:
    jobs = await one.read(transfer.jobs_by_status)
    if waiting := jobs.get("queued", 0) + jobs.get("running", 0):
        raise MigrationRefused(
            f"{waiting} jobs of the source have not ended. Start its engine and let them finish first "
            "(kb jobs), then stop it."
        )


async def _items(store: Store) -> list[_Item]:
    """Return all documents and rows of a database, in the order of copying."""
    found = [_Item("documents", (number,)) for number in await store.read(transfer.document_ids)]
    for table in transfer.TABLES:
        found += [_Item(table, key) for key in await store.read(transfer.keys, table)]
    return found


async def _missing(one: Store, two: Store, items: Sequence[_Item], progress: Progress) -> list[_Item]:
    """Return the items missing in the target. Raises MigrationRefused: it has items unknown to the source."""
    here = await _items(two)
    if strange := set(here) - set(items):
        first = min(map(str, strange))
        raise MigrationRefused(
            f"the target is used: it has {first}, which is not in the source. Name a new one."
        )
    for done, item in enumerate(here):
        progress("comparing", done, len(here))
        await _check_equal(one, two, item)
    known = set(here)
    return [item for item in items if item not in known]


async def _copy(one: Store, two: Store, missing: Sequence[_Item], progress: Progress) -> None:
    documents = [item for item in missing if item.table == "documents"]
    others = [item for item in missing if item.table != "documents"]
    for start in range(0, len(documents), BATCH):
        progress("copying", start, len(missing))
        records = [
            await one.read(transfer.record, int(item.key[0])) for item in documents[start : start + BATCH]
        ]
        try:
            await two.write(transfer.put_records, [each for each in records if each is not None])
        except transfer.VectorLost as error:
            raise MigrationRefused(
                f"{error}. Mend the source with kb check --repair, then repeat."
            ) from error
    for done, item in enumerate(others, len(documents)):
        progress("copying", done, len(missing))
        fields = await one.read(transfer.row, item.table, item.key)
        if fields is not None:
            await two.write(transfer.put_row, item.table, fields)


async def _copy_files(one: Store, two: Store, spool: Spool, progress: Progress) -> int:
    """Copy the missing original files; return the number of all. Raises MigrationRefused."""
    wanted, here = await one.read(originals.every), await two.read(originals.every)
    if here.keys() - wanted.keys():
        raise MigrationRefused("the target is used: it keeps a file that the source has not. Name a new one.")
    for done, sha256 in enumerate(sorted(wanted.keys() - here.keys())):
        progress("copying files", done, len(wanted) - len(here))
        name, digest = f"moved-{sha256}", hashlib.sha256()
        await spool.remove(name)  # left by an earlier run
        try:
            async with spool.receive(name) as file, aclosing(one.original(sha256)) as blocks:
                async for block in blocks:
                    digest.update(block)
                    await file.write(block)
        except EngineError as error:
            if error.code != "original_not_kept":
                raise
        try:
            if digest.hexdigest() != sha256:
                raise MigrationRefused(
                    f"the file {sha256} is missing in the source, or damaged. kb check names its document: "
                    "send the file again, or remove the document for good; then repeat."
                )
            await two.write(originals.take, sha256, wanted[sha256], name)
        finally:
            await spool.remove(name)
    return len(wanted)


async def _compared(one: Store, two: Store, items: Sequence[_Item], progress: Progress) -> str:
    """Return a SHA-256 over the content of both. Raises MigrationRefused: they differ."""
    for store, name in ((one, "source"), (two, "target")):
        if set(await _items(store)) != set(items):
            raise MigrationRefused(
                f"the {name} was changed meanwhile. Stop the engines of both, and repeat with a new target."
            )
    whole = hashlib.sha256()
    for done, item in enumerate(items):
        progress("comparing", done, len(items))
        whole.update((await _check_equal(one, two, item)).encode())
    progress("comparing", len(items), len(items))
    return whole.hexdigest()


async def _check_equal(one: Store, two: Store, item: _Item) -> str:
    """Return the common digest of an item. Raises MigrationRefused: it differs."""
    first, second = await _digest(one, item), await _digest(two, item)
    if first is None or first != second:
        raise MigrationRefused(
            f"{item} is another in the target than in the source: one of the two was used since it was "
            "copied. Stop the engines of both, and repeat with a new target."
        )
    return first


async def _digest(store: Store, item: _Item) -> str | None:
    if item.table == "documents":
        record = await store.read(transfer.record, int(item.key[0]))
        return None if record is None else record.digest
    fields = await store.read(transfer.row, item.table, item.key)
    return None if fields is None else transfer.row_digest(fields)
