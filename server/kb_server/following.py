"""A job followed to its end, with each of its steps reported to the caller that waits for it."""

from __future__ import annotations

import math

from kb_contracts.api import models as m
from kb_server.engine_client.port import Engine
from kb_server.tool import Progress, no_progress
from kb_server.waiting import Clock

LOOK_SECONDS = 0.5
"""Maximum time between two looks at the job, in seconds."""
LEAST_PROGRESS = 0.001
"""Minimum growth of the progress from one notification to the next, also if only the step has changed."""


async def followed(engine: Engine, clock: Clock, job: m.Job, seconds: float, progress: Progress) -> m.Job:
    """Return the job at its end, or its state after `seconds`; each step and each growth is reported."""
    if progress is no_progress:
        return await engine.wait_for_job(job.id, seconds)
    reached, step = -LEAST_PROGRESS, ""
    ends = clock.monotonic() + seconds
    while job.status not in m.FINAL_STATUSES and (left := ends - clock.monotonic()) > 0:
        if job.progress > reached or job.step != step:
            reached, step = max(job.progress, reached + LEAST_PROGRESS), job.step
            await progress(reached, 1.0, step_of(job))
        job = await engine.wait_for_job(job.id, min(LOOK_SECONDS, left))
    if job.status == "completed":
        await progress(1.0, 1.0, job.step)
    return job


def step_of(job: m.Job) -> str:
    """Return the job's step; for a queued job with the estimated time."""
    if job.status != "queued" or job.estimated_seconds is None:
        return job.step
    return f"{job.step}, done in about {math.ceil(job.estimated_seconds)} s"
