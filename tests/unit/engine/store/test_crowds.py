"""Many at once: nobody sees half a document, and of those who want the same one gets it."""

from __future__ import annotations

import asyncio

import pytest

from kb_contracts.api.errors import EngineError
from kb_engine.store.repository import documents, jobs
from tests.support.stores import Base, all_documents, meaning, new_note, prepared

pytestmark = pytest.mark.process


async def test_many_at_once_ingest_search_and_delete_without_a_torn_view(base: Base) -> None:
    """Each search sees whole documents: as many chunks of one as it has."""
    texts = ["common one ", "common two ", "common three "]

    async def writer(number: int) -> None:
        document = await note(base, number, texts)
        if number % 3 == 0:
            await base.store.once(None, documents.delete, document)

    async def reader() -> None:
        found = await base.find("common", "hybrid", vector=meaning("common"), top=100)
        seen = [result.document.id for result in found.results]
        assert all(seen.count(document) == 3 for document in seen)

    await asyncio.gather(*(writer(number) for number in range(30)), *(reader() for _ in range(60)))
    assert await base.count("chunks") == 60
    assert (await base.find("common", top=100)).total == 60


async def note(base: Base, number: int, texts: list[str]) -> int:
    """Ingest a note while others do; whoever takes the job does the work."""
    await base.store.once(None, jobs.accept, new_note(f"{number}"))
    leased = await base.store.write(jobs.take, f"lease {number}")
    assert leased is not None
    job = await base.store.write(documents.commit, leased, prepared(*texts))
    assert job is not None
    assert job.document_id is not None
    return job.document_id


async def test_every_job_is_taken_by_one_worker_only(base: Base) -> None:
    accepted = [await base.store.once(None, jobs.accept, new_note(str(number))) for number in range(20)]
    taken = await asyncio.gather(*(base.store.write(jobs.take, f"L{number}") for number in range(40)))
    ids = [leased.job.id for leased in taken if leased is not None]
    assert sorted(ids) == sorted(job.id for job in accepted)


async def test_of_many_identical_submissions_one_document_comes(base: Base) -> None:
    """The transactions decide, one after the other."""
    leased = []
    for number in range(10):
        await base.store.once(None, jobs.accept, new_note("same", tags=[f"t{number}"]))
        leased.append(await base.store.write(jobs.take, f"L{number}"))
    done = await asyncio.gather(
        *(base.store.write(documents.commit, one, prepared("same")) for one in leased if one)
    )
    assert sorted(job.deduplicated for job in done if job) == [False] + [True] * 9
    (document,) = (await all_documents(base)).documents
    assert len(document.tags) == 10


async def test_of_many_changes_on_one_version_one_wins(base: Base) -> None:
    """The others are told to read again."""
    document = await base.note("a")
    answers = await asyncio.gather(
        *(base.store.once(None, documents.add_tags, document.id, [f"t{number}"], 1) for number in range(10)),
        return_exceptions=True,
    )
    refused = [answer.code for answer in answers if isinstance(answer, EngineError)]
    assert refused == ["version_conflict"] * 9
    assert len((await base.store.read(documents.detail, document.id)).tags) == 1
