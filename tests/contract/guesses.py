"""Seeded sequences of attempts at two bases, one of which has documents out of the caller's scope."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import httpx
import msgspec

from kb_contracts.access.reach import ACCESS, Access, Reach, access_header
from kb_contracts.api.ragler import USER_ID, collection_id
from kb_contracts.semantics.search import quote_hash
from tests.parity.history import PATHS, Step, Story
from tests.parity.playing import Played, Side
from tests.support.engines import client_of

MINE, THEIRS = "collection:memory", "collection:documents"
_OF_TIME = ("elapsed_seconds", "estimated_seconds", "took_ms", "executionTime", "retry_after", "detail")
"""Members that depend on the work done, and texts that repeat generated names."""
_STEPS = 120


def _caller(url: str, name: str, tag: str) -> httpx.Client:
    access = Access(name, reach=Reach(frozenset([tag]), frozenset([f"{tag}-"])))
    return client_of(url, {ACCESS: access_header(access)})


class Exact(Side):
    """A side whose answers are compared completely: also scores, totals and orders."""

    def _seen(self, step: Step, body: Any) -> Any:
        return self._named(body)

    def _named(self, value: Any, inside: str = "") -> Any:
        # The order in which a database sums is undefined.
        return round(value, 9) if isinstance(value, float) else super()._named(value, inside)

    def _member(self, key: str, part: Any, inside: str) -> Any:
        if key == "chunk_id":
            return self._name("chunk", part)
        return "<of time>" if key in _OF_TIME else super()._member(key, part, inside)


class Guesses:
    """The names of the other caller's data; on the second base, names that never existed."""

    def __init__(self, seed: int, theirs: Exact | None) -> None:
        self._dice = Random(seed)
        self._theirs = theirs

    def steps(self, slot: int, text: str) -> Iterator[Step]:
        """Yield some attempts on the other caller's submission `slot`, a note or file with this text."""
        number, uid, job = self._things(slot)
        words = text.split()
        key = self._dice.choice((number, uid))
        place = {"document_id": key}
        quote = {
            "document": uid,
            "version": 1,
            "start": 0,
            "end": 9,
            "begins": text[:9],
            "hash": quote_hash(text),
        }
        tries = [
            Step("getDocument", place),
            Step("getDocument", place, {"params": {"text": "true"}}),
            Step("deleteDocument", place, {"params": {"purge": "true"}}),
            Step("getOriginal", place),
            Step("getPicture", place),
            Step("listVersions", place),
            Step("getVersion", {**place, "version": 1}),
            Step("restoreVersion", {**place, "version": 1}),
            Step("purgeVersions", place),
            Step("addTags", place, {"json": {"tags": [MINE]}}),
            Step("removeTag", {**place, "tag": THEIRS}, {"params": {"add": MINE}}),
            Step("setMetadata", place, {"json": {"metadata": {"a": 1}}}),
            Step("patchNote", {"document_id": number}, {"json": {"text": "mine now"}}),
            Step("removeSource", place, {"params": {"source_path": self._dice.choice(PATHS)}}),
            Step("giveFeedback", place, {"json": {"signal": "useful"}}),
            Step("checkCitation", request={"json": quote}),
            Step("getJob", {"job_id": job}),
            Step("cancelJob", {"job_id": job}),
            Step("retryJob", {"job_id": job}),
            Step("search", request={"json": {"query": text[:200], "top": 100, "explain": True}}),
            Step("search", request={"json": {"query": text[:200], "top": 5, "tags": [THEIRS]}}),
            Step(
                "search", request={"json": {"query": words[0], "mode": "vector", "tags_any": [THEIRS, MINE]}}
            ),
            Step("listDocuments", request={"params": {"tag": THEIRS}}),
            Step("listDocuments", request={"params": {"source_path": self._dice.choice(PATHS)}}),
            Step("listTags", request={"params": {"prefix": THEIRS[:14]}}),
            Step("listCollections", request={"headers": self._user()}),
            Step("getCollection", {"collection_id": collection_id("documents")}, {"headers": self._user()}),
            Step(
                "putCollection",
                {"collection_id": collection_id("documents")},
                {"json": {"name": "documents"}, "headers": self._user()},
            ),
            Step(
                "vectorSearch",
                request={"json": {"query": words[0], "collectionName": "documents"}, "headers": self._user()},
            ),
            Step("getStatus"),
            Step("listTrash"),
            Step("clearDocuments", request={"params": {"confirm": "true"}}),
            Step("createJob", request={"json": {"text": text, "tags": [THEIRS]}}),
        ]
        yield from self._dice.sample(tries, 12)

    def _things(self, slot: int) -> tuple[int, str, str]:
        absent = (
            8_000_000_000 + slot,
            f"00000000-0000-4000-8000-{slot:012d}",
            f"00000000-0000-4000-9000-{slot:012d}",
        )
        if self._theirs is None:
            return absent
        number, uid = self._theirs.documents.get(slot, absent[:2])
        return number, uid, self._theirs.jobs.get(slot, absent[2])

    def _user(self) -> dict[str, str]:
        return {USER_ID: f"guess {self._dice.random()}"}


def _own(step: Step, tag: str, other: str) -> Step:
    """Limit a step to submissions to one collection; a reference to the other collection stays an attempt."""
    if step.operation != "createJob" or step.slot is None:
        return step
    request = dict(step.request)
    if "json" in request:
        tags = [each for each in request["json"].get("tags", ()) if each not in (tag, other)]
        request["json"] = {**request["json"], "tags": [tag, *tags]}
    else:
        fields = request.get("data", {})
        tags = [tag, *msgspec.json.decode(fields.get("tags", "[]"))]
        request["data"] = {**fields, "tags": msgspec.json.encode(tags).decode()}
    return Step(step.operation, step.place, request, slot=step.slot)


def _text_of(step: Step) -> str:
    request = step.request
    if "json" in request:
        return str(request["json"]["text"])
    return request["files"]["file"][1].decode("utf-8", "replace")


def play(seed: int, with_them: str, without_them: str) -> tuple[list[Played], list[Played]]:
    """Return my answers on the base with the other caller, and on the base without."""
    with ExitStack() as stack:
        callers = [
            stack.enter_context(_caller(*each))
            for each in ((with_them, "me", MINE), (without_them, "me", MINE), (with_them, "they", THEIRS))
        ]
        here, alone, theirs = (Exact(caller) for caller in callers)
        guesses = Guesses(seed, theirs), Guesses(seed, None)
        dice, mine = Random(seed), (_own(each, MINE, THEIRS) for each in Story(seed).steps(_STEPS))
        found: tuple[list[Played], list[Played]] = [], []
        for step in (_own(each, THEIRS, MINE) for each in Story(seed + 1).steps(_STEPS)):
            theirs.play([step])
            for _ in range(dice.randint(0, 2)):
                if (own := next(mine, None)) is not None:
                    found[0].extend(here.play([own]))
                    found[1].extend(alone.play([own]))
            if step.operation == "createJob" and step.slot:
                text = _text_of(step)
                for side, guess, answers in zip((here, alone), guesses, found, strict=True):
                    answers.extend(side.play(list(guess.steps(step.slot, text))))
        return found
