"""Collections: names, tags, and moves that leave a document in exactly one whatever happens in between."""

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
from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import ADD_TAGS, GET_DOCUMENT, AnyOperation
from kb_contracts.http.mount import Incoming
from kb_server import collection_moves
from kb_server.clock import Clock
from kb_server.collection_tags import (
    CONVENTIONAL,
    SplitTags,
    split_tags,
    tag_of,
    tags_for_search,
    tags_for_submission,
    validate_tags,
)
from kb_server.engine_client import Engine, Refused
from kb_server.engine_client.http import HttpEngine
from kb_server.tool import Call, ToolError
from kb_server.toolsets.kb.errors import engine_call
from kb_simulator.harness.clock import Clock as VirtualClock
from tests.support.server_fixtures import FakeEngine, JumpingClock, serving

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True)
PLAIN_TAGS = st.lists(st.from_regex(r"[a-z]{1,9}", fullmatch=True), max_size=4)


@pytest.fixture
def fake() -> FakeEngine:
    """An engine that remembers."""
    return FakeEngine()


@pytest.fixture
async def engine(fake: FakeEngine) -> AsyncIterator[HttpEngine]:
    """Its client; no wait takes time."""
    async with serving(fake) as url:
        client = HttpEngine(url, clock=JumpingClock().clock())
        yield client
        await client.close()


def in_collections(fake: FakeEngine, number: int = 1) -> list[str]:
    """The collection tags of a document as the engine has them now."""
    return [tag for tag in fake.documents[number].tags if tag.startswith("collection:")]


async def move(engine: Engine, document: m.Document, target: str) -> m.Document:
    """A move whose pauses take no time, as a tool makes it."""
    with engine_call(Call(), document_id=document.id):
        return await collection_moves.move(engine, document, target, clock=JumpingClock().clock())


class Distant:
    """An engine with one document, which needs 5 ms of virtual time for every answer."""

    def __init__(self, document: m.Document) -> None:
        self.seen = document
        self.time = VirtualClock()

    def clock(self) -> Clock:
        """The clock to hand in: it passes only while all are waiting."""
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
        """A look, or a change of the tags, which is one version on."""
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


class TestTags:
    """Names to tags and back."""

    @pytest.mark.requirement("K25", "K55", "K57", "E14")
    def test_what_names_no_collection_goes_to_documents(self) -> None:
        assert tags_for_submission(None, []) == ["collection:documents"]
        assert CONVENTIONAL == ("documents", "memory", "workspace")

    @pytest.mark.requirement("K27", "K58", "E12")
    def test_the_collections_tag_comes_first(self) -> None:
        assert tags_for_submission("memory", ["feedback"]) == [
            "collection:memory",
            "feedback",
        ]

    @pytest.mark.requirement("K21")
    def test_a_search_asks_for_the_explicit_tags_and_the_collections(self) -> None:
        assert tags_for_search("memory", ["email"]) == ["email", "collection:memory"]

    def test_a_search_without_a_collection_asks_for_none(self) -> None:
        """It looks everywhere."""
        assert tags_for_search(None, ["email"]) == ["email"]

    def test_a_tag_given_twice_is_sent_once(self) -> None:
        assert validate_tags(["b", "a", "b"]) == ["b", "a"]

    @pytest.mark.requirement("K22", "K60")
    def test_a_results_tags_are_split(self) -> None:
        placed = split_tags(["collection:memory", "feedback", "email"])
        assert (placed.collection, placed.tags) == ("memory", ["feedback", "email"])

    def test_without_a_collection_tag_the_collection_is_null(self) -> None:
        assert split_tags(["a"]) == SplitTags(None, ["a"])

    def test_of_several_collections_the_last_added_is_shown(self) -> None:
        assert split_tags(["collection:a", "x", "collection:b"]) == SplitTags("b", ["x"], is_conflicting=True)

    @given(NAMES, PLAIN_TAGS)
    def test_what_was_submitted_is_what_is_shown(self, name: str, tags: list[str]) -> None:
        """Splitting undoes composing; there is exactly one collection tag in between."""
        submitted = tags_for_submission(name, tags)
        assert sum(tag.startswith("collection:") for tag in submitted) == 1
        assert split_tags(submitted) == SplitTags(name, list(dict.fromkeys(tags)))

    @pytest.mark.parametrize(
        "name",
        [
            "",
            " ",
            "Memory",
            "a" * 64,
            "a/b",
            "../x",
            "a:b",
            "-a",
            "_a",
            "collection:x",
            "é",
            "a b",
            "a\n",
            "٣",
        ],
    )
    def test_another_name_is_refused_by_the_parameter(self, name: str) -> None:
        """What it takes is said."""
        with pytest.raises(ToolError, match="`collection` takes 1 to 63") as refused:
            tag_of(name)
        assert refused.value.payload()["error"] == "invalid_collection"
        assert refused.value.details["parameter"] == "collection"

    @pytest.mark.parametrize("tag", ["collection:memory", "collection:", "collection:Odd Name"])
    def test_a_collection_among_the_tags_is_refused(self, tag: str) -> None:
        """The parameter to use is named."""
        for compose in (tags_for_submission, tags_for_search):
            with pytest.raises(ToolError, match="parameter `collection`") as refused:
                compose("documents", ["fine", tag])
            assert refused.value.code == "invalid_tag"

    @pytest.mark.parametrize("tag", ["", ".", "..", " a", "a ", "a,b", "a/b", "a\nb", "\x00", "x" * 201])
    def test_a_tag_that_no_engine_takes_is_refused_here(self, tag: str) -> None:
        with pytest.raises(ToolError, match="is no tag"):
            validate_tags([tag])


class TestMove:
    """One document from one collection into another."""

    @pytest.mark.requirement("K56", "K59", "E13")
    async def test_the_old_tag_is_removed_first_then_the_new_one_added(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        """Through the tag API, each with the version last seen; the other tags stay."""
        document = fake.add("collection:documents", "insurance")
        moved = await move(engine, document, "memory")
        assert moved.tags == ["insurance", "collection:memory"]
        assert fake.mutations() == [
            ("DELETE", "/api/v1/documents/1/tags/collection:documents"),
            ("POST", "/api/v1/documents/1/tags"),
        ]
        assert fake.of("addTags")[0].body == {"tags": ["collection:memory"]}
        matches = [asked.headers["If-Match"] for asked in fake.asked if asked.method != "GET"]
        assert matches == ['"1"', '"2"']

    async def test_a_document_that_is_there_already_is_left_alone(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        """Nothing is sent, and its version stays."""
        document = fake.add("collection:memory")
        assert (await move(engine, document, "memory")).version == 1
        assert fake.mutations() == []

    async def test_a_document_in_no_collection_is_put_into_one(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        """There is nothing to remove."""
        moved = await move(engine, fake.add("a"), "memory")
        assert split_tags(moved.tags).collection == "memory"

    async def test_a_document_in_several_leaves_them_all(self, fake: FakeEngine, engine: HttpEngine) -> None:
        document = fake.add("collection:a", "collection:memory", "collection:b")
        await move(engine, document, "memory")
        assert in_collections(fake) == ["collection:memory"]

    @pytest.mark.parametrize("together", range(4))
    async def test_moves_at_once_end_in_exactly_one_collection(
        self, fake: FakeEngine, engine: HttpEngine, together: int
    ) -> None:
        """Whoever comes late reads the newer version; all succeed or are told why."""
        document = fake.add("collection:documents")
        moves = [move(engine, document, f"c{number}") for number in range(2 + together)]
        outcomes = await asyncio.gather(*moves, return_exceptions=True)
        assert len(in_collections(fake)) == 1
        assert any(isinstance(outcome, m.Document) for outcome in outcomes)
        assert all(isinstance(outcome, m.Document | ToolError) for outcome in outcomes)

    @pytest.mark.parametrize("seed", range(20))
    async def test_sixteen_moves_at_once_all_succeed(self, fake: FakeEngine, seed: int) -> None:
        """Each pauses as chance has it before it tries again, and so they come one after another."""
        document = fake.add("collection:documents", "insurance")
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

    async def test_a_move_meets_another_between_its_two_steps(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        """The other one put the document elsewhere just before our add: we read it again and go on."""
        document = fake.add("collection:documents")

        async def interferes(incoming: Incoming) -> None:
            fake.gates.clear()
            fake._changed(fake.documents[1], tags=["collection:workspace"])

        fake.gates["addTags"] = interferes
        await move(engine, document, "memory")
        assert in_collections(fake) == ["collection:memory"]

    async def test_an_edit_between_the_two_steps_does_not_lose_the_collection(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        """The note's text changed while it was in no collection."""
        document = fake.add("collection:documents")

        async def edits(incoming: Incoming) -> None:
            fake.gates.clear()
            fake._changed(fake.documents[1], title="Edited")

        fake.gates["addTags"] = edits
        moved = await move(engine, document, "memory")
        assert (moved.title, in_collections(fake)) == ("Edited", ["collection:memory"])

    async def test_a_failed_add_is_tried_again(self, fake: FakeEngine, engine: HttpEngine) -> None:
        """A fault that passes is nobody's business."""
        fake.fail("addTags", EngineError("internal", "Oops."))
        await move(engine, fake.add("collection:documents"), "memory")
        assert in_collections(fake) == ["collection:memory"]

    async def test_an_add_that_fails_for_good_is_undone_and_reported(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        """The old tag is back, and the error says where the document is."""
        document = fake.add("collection:documents")
        fake.fail("addTags", *(EngineError("storage_full", "No space.") for _ in range(3)))
        with pytest.raises(ToolError, match="No space") as failed:
            await move(engine, document, "memory")
        assert failed.value.payload()["error"] == "move_failed"
        assert failed.value.details["collection"] == "documents"
        assert in_collections(fake) == ["collection:documents"]

    async def test_where_undoing_fails_too_the_error_says_so(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        document = fake.add("collection:documents")
        fake.fail("addTags", *(EngineError("storage_full", "No space.") for _ in range(4)))
        with pytest.raises(ToolError, match="in no collection now") as failed:
            await move(engine, document, "memory")
        assert failed.value.details["collection"] is None

    async def test_an_add_whose_answer_was_lost_is_recognised(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        """It was done: the next attempt conflicts, and a look shows the document where it should be."""
        document = fake.add("collection:documents")

        async def done_but_untold(incoming: Incoming) -> None:
            fake.gates.clear()
            fake._changed(fake.documents[1], tags=["collection:memory"])
            raise EngineError("internal", "Oops.")

        fake.gates["addTags"] = done_but_untold
        moved = await move(engine, document, "memory")
        assert moved.tags == ["collection:memory"]

    async def test_a_removal_whose_answer_was_lost_is_recognised(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        """The tag is off already; what is left is the add."""
        document = fake.add("collection:documents")

        async def done_but_untold(incoming: Incoming) -> None:
            fake.gates.clear()
            fake._changed(fake.documents[1], tags=[])
            raise EngineError("internal", "Oops.")

        fake.gates["removeTag"] = done_but_untold
        await move(engine, document, "memory")
        assert in_collections(fake) == ["collection:memory"]

    async def test_a_move_given_up_after_its_removal_puts_the_document_back(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        """The removal was done and unanswered, and the look after it failed."""
        document = fake.add("collection:documents")

        async def done_but_untold(incoming: Incoming) -> None:
            fake.gates.clear()
            fake._changed(fake.documents[1], tags=[])
            raise EngineError("internal", "Oops.")

        fake.gates["removeTag"] = done_but_untold
        fake.fail("getDocument", EngineError("internal", "Oops."))
        with pytest.raises(ToolError) as failed:
            await move(engine, document, "memory")
        assert failed.value.code == "engine_failed"
        assert in_collections(fake) == ["collection:documents"]

    async def test_a_move_given_up_that_was_done_all_the_same_is_a_success(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        document = fake.add("collection:documents")

        async def done_by_another(incoming: Incoming) -> None:
            fake._changed(fake.documents[1], tags=["collection:memory"])
            raise EngineError("internal", "Oops.")

        fake.gates["removeTag"] = done_by_another
        fake.fail("getDocument", EngineError("internal", "Oops."))
        moved = await move(engine, document, "memory")
        assert moved.tags == in_collections(fake) == ["collection:memory"]

    async def test_where_nothing_can_be_learned_the_agent_is_told_what_may_be(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        """The engine fails from the removal on."""
        document = fake.add("collection:documents")
        for operation in ("removeTag", "getDocument"):
            fake.fail(operation, *(EngineError("internal", "Oops.") for _ in range(9)))
        with pytest.raises(ToolError, match="may be in no collection now") as failed:
            await move(engine, document, "memory")
        assert failed.value.code == "engine_failed"

    async def test_a_document_that_keeps_changing_is_reported(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        document = fake.add("collection:documents")

        async def always_first(incoming: Incoming) -> None:
            fake._changed(fake.documents[1])

        fake.gates["removeTag"] = always_first
        waiting = JumpingClock()
        with pytest.raises(ToolError, match="kept coming in between"):
            await collection_moves.move(engine, document, "memory", clock=waiting.clock(), jitter=lambda: 1.0)
        assert in_collections(fake) == ["collection:documents"]
        assert waiting.sleeps == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 0.0]

    async def test_a_caller_that_leaves_does_not_stop_it_half_way(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        """Cancelled during the first step, the second is still done."""
        document = fake.add("collection:documents")
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def holds(incoming: Incoming) -> None:
            begun.set()
            await go_on.wait()

        fake.gates["removeTag"] = holds
        moving = asyncio.create_task(move(engine, document, "memory"))
        await begun.wait()
        moving.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await moving
        assert in_collections(fake) == ["collection:memory"]

    async def test_a_document_that_is_gone_is_not_found(self, fake: FakeEngine, engine: HttpEngine) -> None:
        """Deleted since it was read."""
        document = fake.add("collection:documents")
        fake.documents.clear()
        with pytest.raises(ToolError, match="Document 1 was not found"):
            await move(engine, document, "memory")

    async def test_a_wrong_name_changes_nothing(self, fake: FakeEngine, engine: HttpEngine) -> None:
        """It is refused before anything is sent."""
        with pytest.raises(ToolError, match="collection name"):
            await move(engine, fake.add("collection:documents"), "No Name")
        assert fake.asked == []

    async def test_an_engine_that_goes_away_is_reported(self, fake: FakeEngine) -> None:
        async with serving(fake) as url:
            pass
        client = HttpEngine(url, clock=JumpingClock().clock())
        with pytest.raises(ToolError) as failed:
            await move(client, fake.add("collection:documents"), "memory")
        await client.close()
        assert failed.value.code == "engine_unreachable"


class TestRepair:
    """A document that an engine let into several collections."""

    async def test_the_collection_added_last_is_kept(self, fake: FakeEngine, engine: HttpEngine) -> None:
        """The others are taken off, with the version seen."""
        document = fake.add("collection:a", "x", "collection:b", "collection:c")
        repaired = await collection_moves.repair(engine, document)
        assert repaired is not None
        assert repaired.tags == ["x", "collection:c"]
        assert split_tags(document.tags).is_conflicting
        assert not split_tags(repaired.tags).is_conflicting

    async def test_a_document_in_one_collection_is_left_alone(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        """Nothing is sent."""
        assert await collection_moves.repair(engine, fake.add("collection:a", "x")) is None
        assert fake.asked == []

    async def test_one_that_changed_meanwhile_is_left_to_the_next(
        self, fake: FakeEngine, engine: HttpEngine
    ) -> None:
        """Whoever only came to read gets no error of it."""
        document = fake.add("collection:a", "collection:b")
        fake._changed(document)
        assert await collection_moves.repair(engine, document) is None
        assert len(in_collections(fake)) == 2
