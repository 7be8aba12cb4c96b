"""Audit entries of engine requests: caller, action and documents."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aiohttp import web

from kb_config.audit import AuditLog
from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.ragler import USER_ID
from kb_http.mount import Audit, Audited

REQUEST_ID = "X-Request-ID"  # header with the id of the server's request that caused this one


def audit_into(log: AuditLog) -> Audit:
    """Return a function that writes an audit line for each request."""

    def audit(request: Audited) -> None:
        documents, found = _named_in(request.answer)
        if named := request.path.get("document_id"):  # the response may not repeat the id of the request
            documents = list(dict.fromkeys([*documents, named]))
        log.write(
            request.action,
            request.outcome,
            who=request.who,
            user=request.headers.get(USER_ID, ""),
            address=(request.source.remote or "") if isinstance(request.source, web.Request) else "",
            documents=documents,
            found=found,
            correlation_id=request.headers.get(REQUEST_ID, ""),
            detail={"key": request.key} if request.key else None,
        )

    return audit


def _named_in(answer: msgspec.Struct | None) -> tuple[Sequence[str], int | None]:
    """Return the documents of a response, by number and uid or uid only, and the number of hits."""
    match answer:
        case m.Document():
            return [str(answer.id), answer.uid], None
        case m.Job() if answer.document_id is not None and answer.document_uid is not None:
            return [str(answer.document_id), answer.document_uid], None
        case m.Removed(document_id=int(number), document_uid=str(uid)):
            return [str(number), uid], None
        case m.Feedback():
            return [str(answer.document_id)], None
        case m.SearchResponse():
            return list(dict.fromkeys(each.document.uid for each in answer.results)), answer.total
        case r.VectorSearchResponse():
            return (), answer.total
        case m.DocumentList():
            return [each.uid for each in answer.documents], answer.total
        case m.PastVersionList():
            return list(dict.fromkeys(each.uid for each in answer.versions)), answer.total
        case m.PastVersion():
            return [str(answer.document_id), answer.uid], None
        case _:
            return (), None
