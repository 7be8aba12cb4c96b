"""Which handler serves which operation."""

from __future__ import annotations

from collections.abc import Mapping

from kb_contracts.http.mount import Handler, handlers_of
from kb_engine.api.documents import DocumentsApi
from kb_engine.api.engine import Engine
from kb_engine.api.jobs import JobsApi
from kb_engine.api.ragler import RaglerApi
from kb_engine.api.search import SearchApi
from kb_engine.api.state import StateApi


def handlers(engine: Engine) -> Mapping[str, Handler]:
    """A handler for every operation of the contract, by operation id."""
    apis = (SearchApi, JobsApi, DocumentsApi, StateApi, RaglerApi)
    return handlers_of(*(api(engine) for api in apis))
