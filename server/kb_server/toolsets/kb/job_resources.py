"""Jobs as resources beside the documents: `kb://jobs/{id}`, the job as `kb_jobs` gives it.

Jobs are not listed: a client has the id of its job from the result of the tool, or from the task.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.operations import GET_JOB, GET_STATUS
from kb_server.engine_client.errors import Refused
from kb_server.job_tasks import job_id_in
from kb_server.offers import ResourceTemplate, ResourceText
from kb_server.toolsets.kb.resources import JOB_TEMPLATE, DocumentResources, not_found
from kb_server.toolsets.kb.state import job_view

_JOBS = "kb://jobs/"


class BaseResources(DocumentResources):
    """The documents and the jobs of the base."""

    templates = (
        *DocumentResources.templates,
        ResourceTemplate(
            JOB_TEMPLATE,
            "job",
            "An ingestion job",
            "The state of a job by its `job_id`, as JSON; a subscription reports its steps and its end.",
        ),
    )

    async def read(self, uri: str) -> ResourceText:
        if not uri.startswith(_JOBS):
            return await super().read(uri)
        if (job := await self._job(uri)) is None:
            raise not_found(uri)
        return ResourceText(uri, "application/json", msgspec.json.encode(job_view(job)).decode())

    async def state(self, uris: Collection[str]) -> Hashable:
        status = await self._services.engine.call(GET_STATUS)
        documents = status.last_updated, status.documents.total, status.chunks
        if not any(uri.startswith(_JOBS) for uri in uris):
            return documents
        # The status counts jobs: a step of a job changes none of its figures.
        moving = object() if status.queue.queued or status.queue.running else None
        return documents, msgspec.structs.astuple(status.queue), moving

    async def version(self, uri: str) -> Hashable | None:
        if not uri.startswith(_JOBS):
            return await super().version(uri)
        job = await self._job(uri)
        return None if job is None else (job.status, job.step, job.progress, job.attempts)

    async def _job(self, uri: str) -> m.Job | None:
        """Return the job of a URI, or None if it does not exist or the caller does not reach it."""
        if (job_id := job_id_in(uri.removeprefix(_JOBS))) is None:
            return None
        try:
            return await self._services.engine.call(GET_JOB, path={"job_id": job_id})
        except Refused as refused:
            if refused.reason != "job_not_found":
                raise
            return None
