"""The start page: latest documents and notes, jobs, questions, the size and growth of the base, health."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import date, timedelta

from aiohttp import web
from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.semantics.history import QUESTION_DAYS
from kb_server.engine_client.errors import Refused
from kb_server.pages.visit import Visit, sizes

_NAMES = dict(
    each.split()
    for each in """
    ar Arabic; bg Bulgarian; ca Catalan; cs Czech; da Danish; de German; el Greek; en English; es Spanish
    et Estonian; eu Basque; fa Persian; fi Finnish; fr French; ga Irish; hi Hindi; hu Hungarian; hy Armenian
    id Indonesian; it Italian; ja Japanese; km Khmer; ko Korean; lo Lao; lt Lithuanian; ne Nepali; nl Dutch
    no Norwegian; pl Polish; pt Portuguese; ro Romanian; ru Russian; sr Serbian; sv Swedish; ta Tamil; th Thai
    tr Turkish; uk Ukrainian; yi Yiddish; zh Chinese""".replace("\n", ";").split(";")
    if each.strip()
)
"""English names of languages by their code."""
_DOCUMENTS, _NOTES, _JOBS, _ROWS, _UNANSWERED = 8, 6, 4, 8, 8


async def start(visit: Visit) -> web.Response:
    """Show the start page, from one round of concurrent calls within the access scope of the visitor."""
    call = visit.engine.call
    state, collections, newest, notes, running, failed = await asyncio.gather(
        _status(visit),
        visit.collections(),
        call(ops.LIST_DOCUMENTS, query=ops.DocumentsQuery(sort_by="updated_at", limit=_DOCUMENTS)),
        call(ops.LIST_DOCUMENTS, query=ops.DocumentsQuery(doc_type="note", limit=_NOTES)),
        call(ops.LIST_JOBS, query=ops.JobsQuery(status="running", limit=_JOBS)),
        call(ops.LIST_JOBS, query=ops.JobsQuery(status="failed", limit=_JOBS)),
    )
    kinds = state.documents.by_type
    history = m.History(growth=[], languages={}) if state.history is UNSET else state.history
    questions = _every_day(history.questions or [])
    return visit.show(
        "start",
        given=visit.query,
        state=state,
        collections=collections,
        largest=sizes(sorted(collections, key=lambda each: -each.documents)[:_ROWS]),
        kinds=_largest(kinds),
        languages=_languages(history, state.documents.total),
        growth=[
            ("Documents", [(week.week, week.documents) for week in history.growth]),
            ("Passages", [(week.week, week.chunks) for week in history.growth]),
        ],
        questions=questions,
        unanswered=(history.unanswered or [])[:_UNANSWERED],
        newest=newest,
        notes=notes.documents if len(kinds) > 1 else [],
        jobs=[*running.jobs, *(failed.jobs if state.failures else ())],
    )


async def _status(visit: Visit) -> m.Status:
    """Return the status with its history, or without it from an engine that does not know the parameter."""
    try:
        return await visit.engine.call(ops.GET_STATUS, query=ops.StatusQuery(history=True))
    except Refused as refused:
        if refused.reason != "unknown_parameter":
            raise
        return await visit.engine.call(ops.GET_STATUS)


def _largest(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(((name, counts[name]) for name in counts if counts[name]), key=lambda each: -each[1])[
        :_ROWS
    ]


def _every_day(counted: Sequence[m.QuestionDay]) -> list[tuple[str, int, int]]:
    """Return day, questions and those that found nothing, also for the days between without a question."""
    if not counted:
        return []
    found = {each.day: (each.total, each.unanswered) for each in counted}
    first, last = date.fromisoformat(counted[0].day), date.fromisoformat(counted[-1].day)
    first = max(first, last - timedelta(days=QUESTION_DAYS - 1))
    days = [(first + timedelta(days=number)).isoformat() for number in range((last - first).days + 1)]
    return [(day, *found.get(day, (0, 0))) for day in days]


def _languages(history: m.History, total: int) -> list[tuple[str, int]]:
    counts = {_NAMES.get(code, code): count for code, count in history.languages.items()}
    rest = total - sum(counts.values())
    return _largest({**counts, "unknown": rest} if counts else {})
