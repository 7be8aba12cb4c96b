"""What the handlers work with: the parts of one running engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kb_engine.encoder import Encoder
from kb_engine.ingest import JobEnds, KeptJobs, Pipeline, Workers
from kb_engine.settings import EngineSettings
from kb_engine.spool import Spool
from kb_engine.store.facade import Store


class Phase(StrEnum):
    """Where the engine is between its start and its end."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


@dataclass
class Engine:
    """The parts, put together by `kb_engine.app`. `started_at` is RFC 3339."""

    settings: EngineSettings
    store: Store
    spool: Spool
    encoder: Encoder
    pipeline: Pipeline
    workers: Workers
    ends: JobEnds
    kept: KeptJobs
    started_at: str
    phase: Phase = Phase.STARTING
