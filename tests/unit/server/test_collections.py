"""Collections: names, tags, and moves that leave a document in exactly one, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api import models as m
from kb_contracts.api.operations import ADD_TAGS, GET_DOCUMENT, AnyOperation
from kb_server import collection_moves
from kb_server.collection_tags import (
    CONVENTIONAL,
    SplitTags,
    split_tags,
    tag_of,
    tags_for_search,
    tags_for_submission,
    validate_tags,
)
from kb_server.engine_client.errors import EngineFailed, EngineFault, Refused
from kb_server.engine_client.port import Engine
from kb_server.engine_faults import tool_error
from kb_server.tool import ToolError
from kb_server.toolsets.kb.kb_tool import ENGINE_WORDS
from kb_server.waiting import Clock
from kb_simulator.determinism import Clock as VirtualClock
from tests.support.server_fixtures import JumpingClock
from tests.support.simulated_engine import InterruptedEngine, MakeCall, SimulatedEngine, simulated_engine

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True)
PLAIN_TAGS = st.lists(st.from_regex(r"[a-z]{1,9}", fullmatch=True), max_size=4)


@pytest.fixture
async def simulated() -> AsyncIterator[SimulatedEngine]:
    async with simulated_engine() as engine:
        yield engine


@pytest.fixture
async def engine(simulated: SimulatedEngine) -> AsyncIterator[InterruptedEngine]:
    client = InterruptedEngine(simulated.url, clock=JumpingClock().clock())
    yield client
    await client.close()


def in_collections(simulated: SimulatedEngine) -> list[str]:
    return [tag for tag in simulated.document().tags if tag.startswith("collection:")]


async def move(engine: Engine, document: m.Document, target: str) -> m.Document:
    """Move a document as a tool does; pauses take no time."""
    try:
        return await collection_moves.move(engine, document, target, clock=JumpingClock().clock())
    except EngineFault as fault:
        raise tool_error(fault, ENGINE_WORDS, document_id=document.id) from fault


async def repair(engine: Engine, document: m.Document) -> m.Document | None:
    return await collection_moves.repair(engine, document.id, document.tags, document.version)


class Distant:
    """An engine with one document, which takes 5 ms of virtual time for every response."""

    def __init__(self, document: m.Document) -> None:
        self.seen = document
        self.time = VirtualClock()

    def clock(self) -> Clock:
        """A clock that advances only while all tasks wait."""
        return Clock(monotonic=self.time.elapsed, sleep=self.time.sleep)

    async def call(
        self,
        operation: AnyOperation,
        *,
        path: Mapping[str, object],
        query: Any = None,
        body: Any = None,
        if_match: int | None = None,
    ) -> m.Document:
        """Return the document, or change its tags, which raises its version by one."""
        await self.time.sleep(0.005)
        if operation is GET_DOCUMENT:
            return self.seen
        if operation is ADD_TAGS:
            return self._changed(if_match, [*self.seen.tags, *body.tags])
        return self._changed(if_match, [each for each in self.seen.tags if each != path["tag"]])

    def _changed(self, if_match: int | None, tags: list[str]) -> m.Document:
        if if_match != self.seen.version:
            raise Refused("version_conflict", "The document has changed.")
        self.seen = msgspec.structs.replace(self.seen, tags=tags, version=self.seen.version + 1)
        return self.seen


@pytest.mark.requirement("K25", "K55", "K57", "E14")
def test_a_submission_without_a_collection_goes_to_documents() -> None:
    assert tags_for_submission(None, []) == ["collection:documents"]
    assert CONVENTIONAL == ("documents", "memory", "workspace")


@pytest.mark.requirement("K27", "K58", "E12")
def test_the_collections_tag_comes_first() -> None:
    assert tags_for_submission("memory", ["feedback"]) == ["collection:memory", "feedback"]


def test_the_collection_is_one_of_the_tags_that_a_document_may_have() -> None:
    tags = [f"t{number}" for number in range(m.MAX_TAGS)]
    assert len(tags_for_submission("memory", [*tags[1:], tags[1]])) == m.MAX_TAGS
    with pytest.raises(ToolError, match=f"Send {m.MAX_TAGS - 1} at the most"):
        tags_for_submission("memory", tags)


@pytest.mark.requirement("K21")
def test_a_search_asks_for_the_explicit_tags_and_the_collections() -> None:
    assert tags_for_search("memory", ["email"]) == ["email", "collection:memory"]
    assert tags_for_search(None, ["email"]) == ["email"], "it looks everywhere"


@pytest.mark.requirement("K22", "K60")
@pytest.mark.parametrize(
    ("tags", "split"),
    [
        (["collection:memory", "feedback", "email"], SplitTags("memory", ["feedback", "email"])),
        (["a"], SplitTags(None, ["a"])),
        (["collection:a", "x", "collection:b"], SplitTags("b", ["x"], is_conflicting=True)),
    ],
)
def test_a_results_tags_are_split(tags: list[str], split: SplitTags) -> None:
    """The last added of several collections is shown."""
    assert split_tags(tags) == split


@given(NAMES, PLAIN_TAGS)
def test_submitted_collection_and_tags_are_shown_unchanged(name: str, tags: list[str]) -> None:
    submitted = tags_for_submission(name, tags)
    assert sum(tag.startswith("collection:") for tag in submitted) == 1
    assert split_tags(submitted) == SplitTags(name, list(dict.fromkeys(tags)))


@pytest.mark.parametrize(
    "name",
    ["", " ", "Memory", "a" * 64, "a/b", "../x", "a:b", "-a", "_a", "collection:x", "é", "a b", "a\n", "٣"],
)
def test_an_invalid_collection_name_is_refused_with_the_parameter(name: str) -> None:
    with pytest.raises(ToolError, match="`collection` takes 1 to 63") as refused:
        tag_of(name)
    assert refused.value.payload()["error"] == "invalid_collection"
    assert refused.value.details["parameter"] == "collection"


@pytest.mark.parametrize("tag", ["collection:memory", "collection:", "collection:Odd Name"])
def test_a_collection_among_the_tags_is_refused(tag: str) -> None:
    for compose in (tags_for_submission, tags_for_search):
        with pytest.raises(ToolError, match="parameter `collection`") as refused:
            compose("documents", ["fine", tag])
        assert refused.value.code == "invalid_tag"


@pytest.mark.parametrize("tag", ["", ".", "..", " a", "a ", "a,b", "a/b", "a\nb", "\x00", "x" * 201])
def test_a_tag_that_no_engine_takes_is_refused_here(tag: str) -> None:
    with pytest.raises(ToolError, match="is not a tag"):
        validate_tags([tag])


@pytest.mark.requirement("K56", "K59", "E13")
async def test_the_old_tag_is_removed_first_then_the_new_one_added(
    simulated: SimulatedEngine, engine: Engine
) -> None:
    """Through the tag API, each with the version last seen; other tags stay."""
    document = simulated.add("collection:documents", "insurance")
    moved = await move(engine, document, "memory")
    assert moved.tags == ["insurance", "collection:memory"]
    assert simulated.journal.changes() == [
        ("DELETE", "/api/v1/documents/1/tags/collection:documents"),
        ("POST", "/api/v1/documents/1/tags"),
    ]
    assert simulated.journal.bodies("addTags") == [{"tags": ["collection:memory"]}]
    changes = [each for each in simulated.journal.requests() if each.method != "GET"]
    assert [each.headers["If-Match"] for each in changes] == ['"1"', '"2"']


async def test_a_restricted_key_moves_a_document_in_one_request(
    simulated: SimulatedEngine, engine: InterruptedEngine
) -> None:
    """The engine refuses to take a document out of the caller's scope, even between two requests."""
    document = simulated.add("collection:documents", "insurance")
    refusals = [Refused("forbidden", "Without this tag the document would be out of this key's reach.")]

    async def refused_once(make: MakeCall) -> Any:
        if refusals:
            raise refusals.pop()
        return await make()

    engine.around["removeTag"] = refused_once
    moved = await move(engine, document, "memory")
    assert (moved.tags, moved.version) == (["insurance", "collection:memory"], document.version + 2)
    assert simulated.journal.changes() == [("DELETE", "/api/v1/documents/1/tags/collection:documents")]


async def test_a_document_with_more_tags_than_it_may_have_is_moved(
    simulated: SimulatedEngine, engine: Engine
) -> None:
    """Earlier engines accepted such documents: a tag is removed before the new one is added."""
    document = simulated.add("collection:documents", *(f"t{number}" for number in range(m.MAX_TAGS)))
    moved = await move(engine, document, "memory")
    assert moved.tags == [*document.tags[1:], "collection:memory"]


async def test_a_collection_out_of_reach_is_moved_to_by_nobody(
    simulated: SimulatedEngine, engine: InterruptedEngine
) -> None:
    document = simulated.add("collection:documents")

    async def refused(_make: MakeCall) -> Any:
        raise Refused("forbidden", "This key may not give or take this tag.")

    engine.around["removeTag"] = refused
    with pytest.raises(ToolError, match="may not give"):
        await move(engine, document, "memory")
    assert in_collections(simulated) == ["collection:documents"]


async def test_a_document_that_is_there_already_is_left_alone(
    simulated: SimulatedEngine, engine: Engine
) -> None:
    document = simulated.add("collection:memory")
    assert (await move(engine, document, "memory")).version == 1
    assert simulated.journal.changes() == []


@pytest.mark.parametrize(
    "tags", [["a"], ["collection:a", "collection:memory", "collection:b"]], ids=["in none", "in several"]
)
async def test_a_document_in_none_or_several_is_in_exactly_one_afterwards(
    simulated: SimulatedEngine, engine: Engine, tags: list[str]
) -> None:
    await move(engine, simulated.add(*tags), "memory")
    assert in_collections(simulated) == ["collection:memory"]


@pytest.mark.parametrize("seed", range(20))
async def test_sixteen_moves_at_once_all_succeed(simulated: SimulatedEngine, seed: int) -> None:
    """Random pauses between attempts put them in sequence."""
    document = simulated.add("collection:documents", "insurance")
    distant = Distant(document)
    engine, jitter = cast("Engine", distant), random.Random(seed).random
    moves = [
        collection_moves.move(engine, document, f"c{number}", clock=distant.clock(), jitter=jitter)
        for number in range(16)
    ]
    moved = await asyncio.gather(*moves)
    assert [split_tags(each.tags).collection for each in moved] == [f"c{n}" for n in range(16)]
    assert split_tags(distant.seen.tags).collection is not None
    assert not split_tags(distant.seen.tags).is_conflicting


@pytest.mark.parametrize("change", ["moved", "edited"])
async def test_a_change_between_the_two_steps_does_not_lose_the_collection(
    simulated: SimulatedEngine, engine: InterruptedEngine, change: str
) -> None:
    """Another move or an edit comes just before the add: the document is read again."""
    document = simulated.add("collection:documents")

    async def interferes(add: MakeCall) -> Any:
        engine.around.clear()
        if change == "moved":
            simulated.set_tags("collection:workspace")
        else:
            simulated.edit(title="Edited")
        return await add()

    engine.around["addTags"] = interferes
    moved = await move(engine, document, "memory")
    assert in_collections(simulated) == ["collection:memory"]
    assert moved.title == ("Edited" if change == "edited" else document.title)


@pytest.mark.parametrize(
    ("failures", "words", "left"), [(3, "told to fail", ["documents"]), (4, "in no collection now", [])]
)
async def test_an_add_that_fails_for_good_is_undone_or_reported_as_in_no_collection(
    simulated: SimulatedEngine, engine: Engine, failures: int, words: str, left: list[str]
) -> None:
    document = simulated.add("collection:documents")
    simulated.arm("storage_full", "addTags", times=failures)
    with pytest.raises(ToolError, match=words) as failed:
        await move(engine, document, "memory")
    assert failed.value.payload()["error"] == "move_failed"
    assert failed.value.details["collection"] == next(iter(left), None)
    assert in_collections(simulated) == [f"collection:{name}" for name in left]


@pytest.mark.parametrize(("operation", "done"), [("addTags", ["collection:memory"]), ("removeTag", [])])
async def test_a_step_whose_response_was_lost_is_recognised(
    simulated: SimulatedEngine, engine: InterruptedEngine, operation: str, done: list[str]
) -> None:
    """The change was done: the next attempt conflicts, and reading the document shows the remaining steps."""
    document = simulated.add("collection:documents")

    async def loses_its_response(_step: MakeCall) -> Any:
        engine.around.clear()
        simulated.set_tags(*done)
        raise EngineFailed("Oops.")

    engine.around[operation] = loses_its_response
    await move(engine, document, "memory")
    assert in_collections(simulated) == ["collection:memory"]


async def test_a_move_given_up_after_its_removal_puts_the_document_back(
    simulated: SimulatedEngine, engine: InterruptedEngine
) -> None:
    """The removal was done without a response, and the read after it failed."""
    document = simulated.add("collection:documents")

    async def loses_its_response(_removal: MakeCall) -> Any:
        engine.around.clear()
        simulated.set_tags()
        raise EngineFailed("Oops.")

    engine.around["removeTag"] = loses_its_response
    simulated.arm("internal_error", "getDocument")
    with pytest.raises(ToolError) as failed:
        await move(engine, document, "memory")
    assert failed.value.code == "engine_failed"
    assert in_collections(simulated) == ["collection:documents"]


async def test_a_move_given_up_that_was_done_all_the_same_is_a_success(
    simulated: SimulatedEngine, engine: InterruptedEngine
) -> None:
    document = simulated.add("collection:documents")

    async def is_done_by_another(_removal: MakeCall) -> Any:
        simulated.set_tags("collection:memory")
        raise EngineFailed("Oops.")

    engine.around["removeTag"] = is_done_by_another
    simulated.arm("internal_error", "getDocument")
    moved = await move(engine, document, "memory")
    assert moved.tags == in_collections(simulated) == ["collection:memory"]


async def test_a_move_of_unknown_outcome_reports_both_possibilities(
    simulated: SimulatedEngine, engine: Engine
) -> None:
    document = simulated.add("collection:documents")
    for operation in ("removeTag", "getDocument"):
        simulated.arm("internal_error", operation, times=None)
    with pytest.raises(ToolError, match="may be in no collection now") as failed:
        await move(engine, document, "memory")
    assert failed.value.code == "engine_failed"


async def test_a_document_that_keeps_changing_is_reported(
    simulated: SimulatedEngine, engine: InterruptedEngine
) -> None:
    document = simulated.add("collection:documents")

    async def comes_first(removal: MakeCall) -> Any:
        simulated.edit(title=f"{simulated.document().title}!")
        return await removal()

    engine.around["removeTag"] = comes_first
    waiting = JumpingClock()
    with pytest.raises(ToolError, match="concurrent changes"):
        await collection_moves.move(engine, document, "memory", clock=waiting.clock(), jitter=lambda: 1.0)
    assert in_collections(simulated) == ["collection:documents"]
    assert waiting.sleeps == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0]


async def test_a_caller_that_leaves_does_not_stop_it_half_way(
    simulated: SimulatedEngine, engine: InterruptedEngine
) -> None:
    """If the move is cancelled during the first step, the second is still done."""
    document = simulated.add("collection:documents")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def holds(removal: MakeCall) -> Any:
        begun.set()
        await go_on.wait()
        return await removal()

    engine.around["removeTag"] = holds
    moving = asyncio.create_task(move(engine, document, "memory"))
    await begun.wait()
    moving.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await moving
    assert in_collections(simulated) == ["collection:memory"]


async def test_a_document_that_is_gone_is_not_found(simulated: SimulatedEngine, engine: Engine) -> None:
    document = simulated.add("collection:documents")
    simulated.state.documents.remove([document.id], now=0)
    with pytest.raises(ToolError, match="Document 1 was not found"):
        await move(engine, document, "memory")


async def test_the_collection_added_last_is_kept(simulated: SimulatedEngine, engine: Engine) -> None:
    document = simulated.add("collection:a", "x", "collection:b", "collection:c")
    repaired = await repair(engine, document)
    assert repaired is not None
    assert repaired.tags == ["x", "collection:c"]
    assert split_tags(document.tags).is_conflicting
    assert not split_tags(repaired.tags).is_conflicting


async def test_a_document_in_one_collection_is_left_alone(simulated: SimulatedEngine, engine: Engine) -> None:
    assert await repair(engine, simulated.add("collection:a", "x")) is None
    assert simulated.journal.requests() == []


async def test_one_that_changed_meanwhile_is_left_to_the_next(
    simulated: SimulatedEngine, engine: Engine
) -> None:
    """A caller who only reads gets no error of the repair."""
    document = simulated.add("collection:a", "collection:b")
    simulated.edit()
    assert await repair(engine, document) is None
    assert len(in_collections(simulated)) == 2
