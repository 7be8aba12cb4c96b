"""Pages of the engine's work: adding, jobs, and its state."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from kb_contracts.api import models as m
from kb_contracts.api.formats import FORMATS
from kb_contracts.api.operations import CREATE_JOB, GET_STATUS, LIST_JOBS, JobsQuery
from kb_server.collection_tags import tags_for_submission
from kb_server.engine_client.errors import EngineFault
from kb_server.pages.forms import FormError
from kb_server.pages.several import NOT_TRIED, Outcome, failure
from kb_server.pages.visit import Visit, fit, go, listed_in
from kb_server.tool import ToolError

_JOBS = 50


async def addition(visit: Visit) -> web.Response:
    return visit.show("add", collections=await visit.choices(), formats=sorted(FORMATS))


async def add(visit: Visit) -> web.Response:
    form, engine = visit.form, visit.engine
    tags = tags_for_submission(form["collection"] or None, listed_in(form["tags"]))
    common: dict[str, Any] = {"tags": tags, "dedup_scope": tags[0]}
    text, title = form.text("text"), form["title"] or None
    fields = fit(m.FileFields, title=title, **common)
    outcomes = [Outcome(name, "", reason) for name, reason in form.left_out]
    if not (text.strip() or form.files or outcomes):
        raise FormError("Choose a file, or write a text.", 422, "text")
    if text.strip():
        await engine.call(CREATE_JOB, body=fit(m.NoteRequest, text=text, title=title, **common))
        outcomes.append(Outcome("The note", "", ""))
    is_away = False
    for file in form.files:
        reason = ""
        try:
            if is_away:
                raise ToolError("not_tried", NOT_TRIED)
            await engine.send_file(file, fields)
        except (EngineFault, ToolError) as error:
            reason, has_no_answer = failure(error)
            is_away |= has_no_answer
            if is_away and all(each.reason for each in outcomes):
                raise
        outcomes.append(Outcome(file.filename, "", reason))
    failed = [each for each in outcomes if each.reason]
    if len(failed) == len(outcomes):
        reasons = " ".join(f"{each.name}: {each.reason}" for each in failed)
        raise FormError(f"Nothing was added. {reasons}", 422, "file")
    if failed:
        return visit.show("outcomes", heading="Received", outcomes=outcomes, action="add", undo="")
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
