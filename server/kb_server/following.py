"""A job followed to its end, with each of its steps reported to the caller that waits for it."""

from __future__ import annotations

import math

from kb_contracts.api import models as m
from kb_server.engine_client.port import Engine
from kb_server.tool import Progress, no_progress
from kb_server.waiting import Clock

LOOK_SECONDS = 0.5
LEAST_PROGRESS = 0.001
"""With each notification progress has to grow, also where only the step is another."""


async def followed(engine: Engine, clock: Clock, job: m.Job, seconds: float, progress: Progress) -> m.Job:
    """The job at its end, or as it is after `seconds`; each step and each growth is reported."""
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
    """The job's step; of one that waits, for how long it will."""
    if job.status != "queued" or job.estimated_seconds is None:
        return job.step
    return f"{job.step}, done in about {math.ceil(job.estimated_seconds)} s"
