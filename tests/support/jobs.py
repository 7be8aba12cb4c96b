"""A job as the contract has it, for tests that hand one out."""

from __future__ import annotations

from typing import Any

import msgspec

from kb_contracts.api import models as m


def job_with(**members: Any) -> m.Job:
    """One that waits, but for these members."""
    waiting = m.Job(
        id="3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11",
        status="queued",
        kind="note",
        title="t",
        filename=None,
        tags=[],
        step="waiting",
        progress=0,
        completed_steps=0,
        total_steps=1,
        attempts=0,
        document_id=None,
        document_uid=None,
        deduplicated=False,
        error=None,
        created_at="2026-01-01T00:00:00Z",
        started_at=None,
        finished_at=None,
    )
    return msgspec.structs.replace(waiting, **members)
