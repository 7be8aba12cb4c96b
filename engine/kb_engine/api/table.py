"""Which handler serves which operation."""

from __future__ import annotations

from collections.abc import Mapping

from kb_contracts.http.mount import Handler
from kb_engine.api.documents import DocumentsApi
from kb_engine.api.engine import Engine
from kb_engine.api.jobs import JobsApi
from kb_engine.api.ragler import RaglerApi
from kb_engine.api.search import SearchApi
from kb_engine.api.state import StateApi


def handlers(engine: Engine) -> Mapping[str, Handler]:
    """A handler for every operation of the contract, by operation id."""
    jobs, documents, state = JobsApi(engine), DocumentsApi(engine), StateApi(engine)
    ragler = RaglerApi(engine)
    return {
        "search": SearchApi(engine).search,
        "createJob": jobs.create,
        "listJobs": jobs.list,
        "getJob": jobs.get,
        "cancelJob": jobs.cancel,
        "retryJob": jobs.retry,
        "listDocuments": documents.list,
        "getDocument": documents.get,
        "deleteDocument": documents.delete,
        "clearDocuments": documents.clear,
        "patchNote": documents.patch_note,
        "addTags": documents.add_tags,
        "removeTag": documents.remove_tag,
        "listTags": documents.list_tags,
        "getStatus": state.status,
        "getHealth": state.health,
        "getReadiness": state.readiness,
        "vectorSearch": ragler.search,
        "listCollections": ragler.list,
        "getCollection": ragler.get,
        "putCollection": ragler.put,
    }
