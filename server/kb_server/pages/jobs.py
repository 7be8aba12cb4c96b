"""Pages of the engine's work: adding, jobs, and its state."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from kb_contracts.api import models as m
from kb_contracts.api.formats import FORMATS
from kb_contracts.api.operations import (
    CREATE_JOB,
    GET_STATUS,
    LIST_JOBS,
    JobsQuery,
)
from kb_server.collection_tags import tags_for_submission
from kb_server.pages.forms import FormError
from kb_server.pages.visit import Visit, fit, go, listed_in

_JOBS = 50


async def addition(visit: Visit) -> web.Response:
    return visit.show("add", collections=await visit.choices(), formats=sorted(FORMATS))


async def add(visit: Visit) -> web.Response:
    form, engine = visit.form, visit.engine
    tags = tags_for_submission(form["collection"] or None, listed_in(form["tags"]))
    common: dict[str, Any] = {"tags": tags, "dedup_scope": tags[0]}
    text, title = form.text("text"), form["title"] or None
    if not text.strip() and not form.files:
        raise FormError("Choose a file, or write a text.", 422, "text")
    if text.strip():
        await engine.call(CREATE_JOB, body=fit(m.NoteRequest, text=text, title=title, **common))
    for file in form.files:
        await engine.send_file(file, fit(m.FileFields, title=title, **common))
    return go("/jobs?done=added")


async def listing(visit: Visit) -> web.Response:
    query = fit(JobsQuery, status=visit.query.get("status"), offset=visit.query.get("offset"), limit=_JOBS)
    listed = await visit.engine.call(LIST_JOBS, query=query)
    return visit.show(
        "jobs",
        given=visit.query,
        listed=listed,
        going_on=any(job.status not in m.FINAL_STATUSES for job in listed.jobs),
        around=visit.around(listed.offset, len(listed.jobs), listed.total, _JOBS),
    )


async def change(operation: Any, done: str, visit: Visit) -> web.Response:
    await visit.engine.call(operation, path=visit.request.match_info)
    return go(f"/jobs?done={done}")


async def state(visit: Visit) -> web.Response:
    return visit.show("state", state=await visit.engine.call(GET_STATUS))
