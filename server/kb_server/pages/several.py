"""Changes of several documents at once: a confirmation by title, then each by itself, with its result.

The page of the results has a form that undoes them, with the steps in its fields: nothing is stored. Each
step is bound to the version that the change left: a second undo, or one after another change, is refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from kb_contracts.access.reach import Right
from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_server import collection_moves
from kb_server.collection_tags import collections_in, tag_of, validate_tags
from kb_server.engine_client.errors import EngineFault, Refused
from kb_server.engine_client.port import read_document
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


class Undo(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The way back for one document: at `version` tags to remove, and one to add; 0: to restore it."""

    key: str
    version: m.Count
    removed: list[m.Tag] = []
    added: m.Tag | None = None


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
    undos: list[Undo] = []

    async def apply(key: str) -> Outcome:
        document = await read_document(visit.engine, key)
        titles[key] = document.title
        undo = await _apply(visit, selection, document)
        if undo is not None:
            undos.append(undo)
        return Outcome(document.title, "" if selection.action == "remove" else f"/documents/{key}", "")

    titles: dict[str, str] = {}
    outcomes = await _each(selection.keys, apply, titles)
    way_back = msgspec.json.encode(undos).decode() if undos else ""
    heading = _HEADINGS[selection.action]
    return visit.show("outcomes", heading=heading, outcomes=outcomes, action=selection.action, undo=way_back)


_HEADINGS = {"tag": "Tags added", "move": "Documents moved", "remove": "Documents removed"}


async def undo(visit: Visit) -> web.Response:
    """Undo the changes of a form for each document that was not changed since."""
    try:
        undos = {each.key: each for each in msgspec.json.decode(visit.form["undo"], type=list[Undo])}
    except msgspec.MsgspecError as error:
        raise FormError("This form undoes nothing. Go back, and load the page again.", 422) from error
    if not 0 < len(undos) <= MOST or not all(map(_KEY.fullmatch, undos)):
        raise FormError("This form undoes nothing. Go back, and load the page again.", 422)

    async def apply(key: str) -> Outcome:
        try:
            document = await _undone(visit, undos[key])
        except Refused as refused:
            if refused.reason not in ("version_conflict", "tag_not_found"):
                raise
            raise _changed_since() from refused
        return Outcome(document.title, f"/documents/{document.id}", "")

    outcomes = await _each(list(undos), apply, {})
    return visit.show("outcomes", heading="Undone", outcomes=outcomes, action="undo", undo="")


def _changed_since() -> ToolError:
    return ToolError("changed_since", "It was changed since, and stays as it is now.")


async def _each(
    keys: Sequence[str], apply: Callable[[str], Awaitable[Outcome]], titles: Mapping[str, str]
) -> list[Outcome]:
    """Return the outcome of `apply` for each document, in turn, until the engine does not answer."""
    outcomes: list[Outcome] = []
    is_away = False
    for key in keys:
        try:
            if is_away:
                raise ToolError("not_tried", NOT_TRIED)
            outcomes.append(await apply(key))
        except (EngineFault, ToolError) as error:
            reason, has_no_answer = failure(error, document_id=key)
            is_away |= has_no_answer
            outcomes.append(Outcome(titles.get(key, f"document {key}"), f"/documents/{key}", reason))
    return outcomes


async def _apply(visit: Visit, selection: Selection, document: m.Document) -> Undo | None:
    """Change a document; return the way back, or None if nothing changed."""
    path = {"document_id": document.id}
    if selection.action == "remove":
        await visit.engine.call(ops.DELETE_DOCUMENT, path=path)
        return Undo(document.uid, 0)
    if selection.action == "move":
        tag, before = tag_of(selection.collection), collections_in(document.tags)
        moved = await collection_moves.move(visit.engine, document, selection.collection, clock=visit.clock)
        new, former = [tag], before[-1] if before else None
    else:
        moved = await visit.engine.call(ops.ADD_TAGS, path=path, body=m.TagsRequest(tags=selection.tags))
        new, former = [tag for tag in selection.tags if tag not in document.tags], None
    return None if moved.version == document.version else Undo(str(document.id), moved.version, new, former)


async def _undone(visit: Visit, undo: Undo) -> m.Document:
    if not undo.version:
        path = {"document_id": undo.key}
        last = (await visit.engine.call(ops.LIST_VERSIONS, path=path, query=ops.PageQuery(limit=1))).versions
        if not (last and last[0].removed):
            raise _changed_since()
        return await visit.engine.call(ops.RESTORE_VERSION, path={**path, "version": last[0].version})
    document, version = None, undo.version
    for tag in undo.removed:
        document = await visit.engine.call(
            ops.REMOVE_TAG,
            path={"document_id": undo.key, "tag": tag},
            query=ops.TagQuery(add=undo.added),
            if_match=version,
        )
        version = document.version
    if document is None:
        raise _changed_since()
    return document


async def _read(visit: Visit, key: str) -> m.Document | str:
    """Return the document, or its key if it is gone."""
    try:
        return await read_document(visit.engine, key)
    except Refused:
        return key


def _selection(visit: Visit, fields: Mapping[str, str], keys: list[str]) -> Selection:
    """Return a checked selection. Raises FormError, ToolError: nothing is chosen, or an input is invalid."""
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
