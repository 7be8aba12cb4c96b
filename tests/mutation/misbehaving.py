"""The wrong behaviour of the mutants."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from aiohttp import web

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m
from kb_contracts.api.content import FileContent
from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import AnyOperation
from kb_contracts.semantics import query
from kb_contracts.semantics.cursors import Place, opened
from kb_contracts.semantics.documents import document_key, text_digest
from kb_contracts.semantics.ranking import RankingDefaults, RankingPlan, ranking_plan
from kb_contracts.semantics.requests import Idempotency
from kb_contracts.semantics.search import Quote, find_quote, query_of, without_text
from kb_contracts.semantics.sources import Holder, Plan, plan
from kb_http import mount, requests
from kb_http.mount import Answering, Handler
from kb_http.requests import Incoming
from kb_simulator.engine import commits, search
from kb_simulator.engine.documents import Documents
from kb_simulator.engine.handlers import CURRENT
from kb_simulator.engine.jobs import Answers
from kb_simulator.engine.stored import Stored
from kb_simulator.engine.versions import History, Past

EARLY = "2020-01-01T00:00:00.000000Z"
_TESTS = search._tests


def half_of_the_file(answer: FileContent) -> dict[str, Any]:
    async def blocks() -> AsyncGenerator[bytes, None]:
        data = b"".join([block async for block in answer.blocks])
        yield data[: len(data) // 2]

    return {"size": answer.size // 2, "blocks": blocks()}


def bytes_of_every_file(self: Documents) -> int:
    return sum(len(stored.original or b"") for stored in self.by_id.values())


_keep = History.keep


def kept_without_file(self: History, stored: Stored, now: int, *, removed: bool = False) -> None:
    document = msgspec.structs.replace(stored.document, original=msgspec.UNSET)
    _keep(self, replace(stored, document=document, original=None), now, removed=removed)


def refused_as_absent(document: m.Document) -> None:
    if document.original is not True:
        raise EngineError("document_not_found", "There is no such document.")


def hash_of_another_kind(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def found_in_its_place_alone(
    citation: m.Citation, text: str, *, begins_at: int = 0, **_: Any
) -> Quote | None:
    return find_quote(citation, text, begins_at=begins_at)


def last_first(text: str, words: str, _start: int) -> Iterator[int]:
    place = text.rfind(words)
    while place >= 0:
        yield place
        place = text.rfind(words, 0, place + len(words) - 1)


def few_of_each(results: Sequence[m.SearchResult], _top: int, most: int) -> list[m.SearchResult]:
    counts: Counter[int] = Counter()
    kept = []
    for result in results:
        counts[result.document.id] += 1
        if counts[result.document.id] <= most:
            kept.append(result)
    return kept


def words_alone(phrases: Iterable[str]) -> tuple[set[str], list[str]]:
    return {word for phrase in phrases for word in query.words_of(phrase)}, []


def holding_the_letters(wording: query.Wording, _title: str, _heading: str | None, text: str) -> bool:
    letters = "".join(query.words_of(text))
    return all("".join(query.words_of(phrase)) in letters for phrase in wording.phrases)


def holding_in_the_text_alone(
    wording: query.Wording, _title: str, _heading: str | None, text: str, passes: Any = query.Wording.passes
) -> bool:
    return bool(passes(wording, "", None, text))


def holding_all_in_one(
    wording: query.Wording, title: str, heading: str | None, text: str, passes: Any = query.Wording.passes
) -> bool:
    return bool(passes(wording, "", None, f"{title} {heading or ''} {text}"))


def holding_one_phrase(
    wording: query.Wording, title: str, heading: str | None, text: str, passes: Any = query.Wording.passes
) -> bool:
    each = [query.Wording([phrase], wording.excluded) for phrase in wording.phrases] or [wording]
    return any(passes(one, title, heading, text) for one in each)


def phrases_to_the_end(text: str) -> Iterator[tuple[int, int]]:
    start = text.find('"')
    if start >= 0 and any(map(str.isalnum, text[start:])):
        end = text.find('"', start + 1)
        yield start, len(text) if end < 0 else end + 1


def phrase_that_is_looked_for(text: str, start: int, end: int, _excludes: bool) -> Any:
    return query._Part(start, end, text[start + 1 : end - 1], excluded=False)


def excluded_wherever_a_minus_stands(text: str, _phrases: Any) -> list[Any]:
    return [
        query._Part(found.start(), found.end(), found[1], excluded=True)
        for found in re.finditer(r"-+[ =]?(\w+)", text)
    ]


def ranked_by_the_whole_query(request: m.SearchRequest) -> query.ParsedQuery:
    return dataclasses.replace(query_of(request), text=request.query)


def ranked_without_phrases(request: m.SearchRequest) -> query.ParsedQuery:
    parsed = query_of(request)
    text = parsed.text
    for phrase in parsed.wording.phrases if parsed.wording else ():
        text = text.replace(phrase, "")
    return dataclasses.replace(parsed, text=text.strip() or parsed.text)


def counted_after_the_first_page(request: m.SearchRequest, reach: Reach | None) -> Any:
    answer, places = opened(request, reach)
    return msgspec.structs.replace(answer, total=max(1, answer.total)), places


async def total_without_syntax(incoming: Incoming, inner: Handler) -> Any:
    words = incoming.body.query.replace('"', "").replace(" -", " ")
    every: Any = await inner(with_body(incoming, msgspec.structs.replace(incoming.body, query=words)))
    return msgspec.structs.replace(await inner(incoming), total=every.total)


async def looking_for_what_is_excluded(incoming: Incoming, inner: Handler) -> Any:
    words = incoming.body.query.replace("-", "")
    return await inner(with_body(incoming, msgspec.structs.replace(incoming.body, query=words)))


def places_alone(results: Iterable[m.SearchResult]) -> list[m.SearchResult]:
    return [msgspec.structs.replace(result, before=[], after=[]) for result in without_text(results)]


def ranked_anew(documents: Documents, request: m.SearchRequest, _reach: Reach | None) -> m.SearchResponse:
    """The second page, computed from the current documents."""
    answer = search._search(documents, request, query_of(request), 0)
    answer.results = answer.results[request.top :]
    return answer


def tests_of_first_pages(request: m.SearchRequest) -> list[search.Test]:
    """An empty list for the pages after a cursor."""
    return [] if request.cursor else _TESTS(request)


def places_behind_the_page(results: Sequence[m.SearchResult]) -> list[list[Place]]:
    """Return no places, for a page that pretends to be complete."""
    return []


async def job_as_it_is(incoming: Incoming, _inner: Handler) -> m.Job:
    return CURRENT.get().namespace.state.job(incoming.path["job_id"])


async def document_as_it_is(incoming: Incoming, _inner: Handler) -> m.Document:
    key = incoming.path["document_id"]
    key = int(key) if str(key).isdecimal() else key
    return CURRENT.get().namespace.state.documents.find(key).document


async def only_said_to_be_cancelled(incoming: Incoming, inner: Handler) -> m.Job:
    job = await job_as_it_is(incoming, inner)
    if job.finished_at is not None:
        return await inner(incoming)  # type: ignore[return-value]  # the handler of cancelJob
    return msgspec.structs.replace(job, status="cancelled", finished_at=job.created_at)


async def said_to_be_removed(_incoming: Incoming, _inner: Handler) -> m.Removed:
    return m.Removed(documents=1, chunks=1, bytes=7)


async def documents_alone_removed(incoming: Incoming, inner: Handler) -> Any:
    if not incoming.query.confirm:
        return await inner(incoming)
    base = CURRENT.get().namespace.state.documents
    return base.remove(list(base.by_id), CURRENT.get().namespace.state.now())


async def numbers_only(incoming: Incoming, inner: Handler) -> Any:
    if not incoming.path["document_id"].isdecimal():
        raise EngineError("document_not_found", "Not by uid.")
    return await inner(incoming)


def similar_to_itself(
    documents: Documents, note: m.DocumentDetail, limit: int, now: int
) -> list[m.SimilarNote]:
    itself = m.SimilarNote(note.id, note.uid, note.title, 1.0)
    return [itself, *search.similar_to(documents, note, limit, now)]


async def dropped_from_one_side(incoming: Incoming, inner: Handler) -> Any:
    """The end of a date range excludes its own moment."""
    answer = await inner(incoming)
    assert isinstance(answer, m.SearchResponse)
    until = incoming.body.filters and incoming.body.filters.date_to
    kept = [each for each in answer.results if each.document.created_at[: len(until or "x")] != until]
    return msgspec.structs.replace(answer, results=kept)


async def contradicting(incoming: Incoming, inner: Handler) -> Any:
    sent = incoming.body
    wanted = msgspec.structs.replace(sent, fts_only=None if sent.mode else sent.fts_only)
    return await inner(with_body(incoming, wanted))


def with_body(incoming: Incoming, wanted: Any) -> Incoming:
    return dataclasses.replace(incoming, body=wanted)


async def without_range(incoming: Incoming, inner: Handler) -> Any:
    wanted = msgspec.structs.replace(incoming.body, filters=None)
    return await inner(with_body(incoming, wanted))


def any_of(incoming: Incoming) -> dict[str, Any]:
    sent = incoming.body
    return {"body": msgspec.structs.replace(sent, tags=[], tags_any=[*sent.tags, *sent.tags_any])}


def nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


whole_query, whole_body = requests.convert_query, requests.decode_body
"""The original functions, saved before a mutant replaces them."""


def ranked_as_usual(query: str, _ranking: m.Ranking, defaults: RankingDefaults) -> RankingPlan:
    return ranking_plan(query, m.Ranking(), defaults)


async def changing_the_document(incoming: Incoming, inner: Handler) -> Any:
    answer = await inner(incoming)
    key, state = incoming.path["document_id"], CURRENT.get().namespace.state
    state.documents.add_tags(int(key) if key.isdecimal() else key, ["heard"], None, state.now())
    return answer


def mismatch_taken(self: Answers, retry: Idempotency, _now: int) -> Any:
    given = self._given.get((retry.credential, retry.operation, retry.key))
    return given.answer if given else None


def shared_between_operations(self: Answers, retry: Idempotency, _now: int) -> Any:
    same = [each for place, each in self._given.items() if place[2] == retry.key]
    if same and same[0].fingerprint != retry.fingerprint:
        raise EngineError("idempotency_mismatch", "The key was used.")
    return same[0].answer if same else None


def unknown_passed_over(pairs: list[tuple[str, str]], model: Any) -> Any:
    known = set(model.__struct_fields__)
    return whole_query([pair for pair in pairs if pair[0] in known], model)


def last_one_wins(pairs: list[tuple[str, str]], model: Any) -> Any:
    return whole_query(list(dict(pairs).items()), model)


def unknown_members_passed_over(raw: bytes, model: Any) -> Any:
    try:
        value = msgspec.json.decode(raw)
        known = {key: part for key, part in value.items() if key in model.__struct_fields__}
    except (msgspec.DecodeError, AttributeError):
        return whole_body(raw, model)
    return whole_body(msgspec.json.encode(known), model)


plain_problem_response = mount.problem_response


def plain_problem(error: EngineError) -> web.Response:
    response = plain_problem_response(error)
    response.content_type = "application/json"
    return response


def problem_without(name: str) -> Any:
    def respond(error: EngineError) -> web.Response:
        response = plain_problem_response(error)
        response.headers.pop(name, None)
        return response

    return respond


def problem_without_member(name: str) -> Any:
    def respond(error: EngineError) -> web.Response:
        error.members = {key: part for key, part in error.members.items() if key != name}
        return plain_problem_response(error)

    return respond


def adapted(change: Callable[[web.StreamResponse], object]) -> Any:
    """Return an adapter whose responses are changed."""

    def adapt(operation: AnyOperation, answer: Answering) -> Any:
        serve = whole_adapt(operation, answer)

        async def changed(request: web.Request) -> web.StreamResponse:
            response = await serve(request)
            change(response)
            return response

        return changed

    return adapt


whole_adapt = mount._adapt


async def any_body(operation: Any, request: web.Request) -> Any:
    if operation.body is None or request.content_type == "multipart/form-data":
        return None
    return await request.read()


def key_by(is_key: Callable[[str, str], bool]) -> Any:
    """Serve a request if `is_key` is true for its header and the key."""

    def refusal(namespace: Any, request: web.Request) -> EngineError | None:
        if mount.is_probe(request) or is_key(request.headers.get("Authorization", ""), namespace.api_key):
            return None
        return EngineError("unauthorized", "Send the key.")

    return refusal


def united_in_nothing(_self: Any, stored: Any, *_args: Any) -> Any:
    return stored


def none(*_: Any) -> list[Any]:
    return []


def hash_of_all(text: str) -> str:
    return text_digest(text)[0]


def one_scope(*_: Any) -> str:
    return ""


def scope_as_sent(dedup_scope: str, *_tags: Any) -> str:
    return dedup_scope


def plan_that_takes_shared_documents(path: str | None, twin: int | None, holders: Sequence[Holder]) -> Plan:
    return plan(path, twin, [replace(each, source_paths=[path or ""]) for each in holders])


def plan_that_forgets_the_unsourced(path: str | None, twin: int | None, holders: Sequence[Holder]) -> Plan:
    return plan(path, twin, [replace(each, unsourced=False) for each in holders])


def plan_that_removes_nothing(path: str | None, twin: int | None, holders: Sequence[Holder]) -> Plan:
    return replace(plan(path, twin, holders), removed=())


_replace_note = commits.replace_note


def replaced_whatever_the_version(base: Documents, number: int, patch: m.NotePatch, now: int) -> Any:
    return _replace_note(base, number, msgspec.structs.replace(patch, expected_version=None), now)


def replaced_by_what_stands(base: Documents, number: int, patch: m.NotePatch, now: int) -> Any:
    stored = base.note(number, patch.expected_version)
    base.history.keep(stored, now)
    return base.change(stored, _replace_note(base, number, patch, now), now)


def with_title_of_now(answer: m.PastVersionList) -> dict[str, Any]:
    """Pretend that the history kept only the version numbers."""
    return {"versions": [msgspec.structs.replace(each, title="basalt columns") for each in answer.versions]}


async def said_to_be_restored(incoming: Incoming, _inner: Handler) -> m.Document:
    documents = CURRENT.get().namespace.state.documents
    return documents.find(document_key(incoming.path["document_id"])).document


def kept_once(self: History, stored: Any, now: int, *, removed: bool = False) -> None:
    """Keep only the first past version of a document."""
    self.by_id.setdefault(stored.document.id, (Past(stored, now, removed),))


def first_passage_again(_self: Any, past: Any, _version: int) -> Any:
    return past.chunks[:1]


def all_forgotten(self: History, document_id: int, _version: int) -> None:
    del self.by_id[document_id]


async def purged_with_its_source(incoming: Incoming, inner: Handler) -> Any:
    answer = await inner(incoming)
    CURRENT.get().namespace.state.documents.history.by_id.clear()
    return answer


def history_that_stays() -> History:
    """Return the history of the base that is being cleared."""
    return CURRENT.get().namespace.state.documents.history
