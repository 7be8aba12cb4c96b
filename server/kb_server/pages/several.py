"""Changes of several documents at once: a confirmation by title, then each by itself, with its result."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from aiohttp import web

from kb_contracts.access.reach import Right
from kb_contracts.api import models as m
from kb_contracts.api.operations import ADD_TAGS, DELETE_DOCUMENT, GET_DOCUMENT, WITHOUT_CHUNKS
from kb_server import collection_moves
from kb_server.collection_tags import tag_of, validate_tags
from kb_server.engine_client.errors import EngineFault, Refused
from kb_server.engine_faults import tool_error
from kb_server.pages.forms import FormError
from kb_server.pages.sessions import PAGES
from kb_server.pages.visit import Visit, listed_in
from kb_server.tool import ToolError

MOST = 50
"""Maximum number of documents that one form changes."""
_RIGHTS: Mapping[str, Right] = {"tag": "write", "move": "write", "remove": "delete"}
_KEY = re.compile(r"[0-9a-f-]{1,36}")


class Selection(NamedTuple):
    """The chosen documents, and the change that is to be made to each."""

    action: str
    keys: list[str]
    tags: list[str]
    collection: str


class Outcome(NamedTuple):
    """The result for one document or file. `there` is its address, or empty; `reason` is empty on success."""

    name: str
    there: str
    reason: str


NOT_TRIED = "Not tried, because the engine did not answer."


def failure(error: EngineFault | ToolError, **subject: Any) -> tuple[str, bool]:
    """Return the reason in words, and True if the engine did not answer, so that more is not tried."""
    if isinstance(error, ToolError):
        return error.message, False
    return tool_error(error, **subject).message, not isinstance(error, Refused)


async def confirmation(visit: Visit) -> web.Response:
    """Show the chosen documents by title, before the change."""
    query = visit.request.query
    selection = _selection(visit, visit.query, query.getall("id", []))
    found = await asyncio.gather(*(_read(visit, key) for key in selection.keys))
    return visit.show("selected", selection=selection, documents=found)


async def change(visit: Visit) -> web.Response:
    """Change each of the chosen documents; a failure is named and does not stop the rest."""
    selection = _selection(visit, visit.form.fields, listed_in(visit.form["ids"]))
    outcomes: list[Outcome] = []
    is_away = False
    for key in selection.keys:
        title, there, reason = f"document {key}", f"/documents/{key}", ""
        try:
            if is_away:
                raise ToolError("not_tried", NOT_TRIED)
            document = await visit.engine.call(GET_DOCUMENT, path={"document_id": key}, query=WITHOUT_CHUNKS)
            title = document.title
            await _apply(visit, selection, document)
            there = "" if selection.action == "remove" else there
        except (EngineFault, ToolError) as error:
            reason, has_no_answer = failure(error, document_id=key)
            is_away |= has_no_answer
        outcomes.append(Outcome(title, there, reason))
    return visit.show(
        "outcomes", heading=_HEADINGS[selection.action], outcomes=outcomes, action=selection.action
    )


_HEADINGS = {"tag": "Tags added", "move": "Documents moved", "remove": "Documents removed"}


async def _apply(visit: Visit, selection: Selection, document: m.Document) -> None:
    path = {"document_id": document.id}
    if selection.action == "remove":
        await visit.engine.call(DELETE_DOCUMENT, path=path)
    elif selection.action == "move":
        await collection_moves.move(visit.engine, document, selection.collection, clock=visit.clock)
    else:
        await visit.engine.call(ADD_TAGS, path=path, body=m.TagsRequest(tags=selection.tags))


async def _read(visit: Visit, key: str) -> m.Document | str:
    """Return the document, or its key if it is gone."""
    try:
        return await visit.engine.call(GET_DOCUMENT, path={"document_id": key}, query=WITHOUT_CHUNKS)
    except Refused:
        return key


def _selection(visit: Visit, fields: Mapping[str, str], keys: list[str]) -> Selection:
    """Return a checked selection.

    Raises:
        FormError, ToolError: no document is chosen, or an input is invalid.
    """
    action = fields.get("action", "")
    if action not in _RIGHTS:
        raise FormError("Choose a change: add tags, move, or remove.", 422, "action")
    if _RIGHTS[action] not in visit.grant.access.rights:
        raise FormError(visit.grant.refusal(_RIGHTS[action], PAGES), 403)
    keys = list(dict.fromkeys(keys))
    if not 0 < len(keys) <= MOST or not all(map(_KEY.fullmatch, keys)):
        raise FormError(f"Choose 1 to {MOST} documents of the list.", 422, "id")
    tags, collection = [], fields.get("collection", "").strip()
    if action == "tag":
        tags = validate_tags(listed_in(fields.get("tags", "")))
        if not tags:
            raise FormError("Write the tags to add, separated by commas.", 422, "tags")
    elif action == "move":
        tag_of(collection)
    return Selection(action, keys, tags, collection)
