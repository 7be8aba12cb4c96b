"""Ingestion: from an accepted job to a document that can be found."""

from kb_engine.ingest.kept import KeptBounds, KeptJobs
from kb_engine.ingest.pipeline import LeaseVoid, Pipeline
from kb_engine.ingest.steps import Progress
from kb_engine.ingest.store_events import StoreEventHandler
from kb_engine.ingest.waiting import JobEnds
from kb_engine.ingest.workers import Workers

__all__ = [
    "JobEnds",
    "KeptBounds",
    "KeptJobs",
    "LeaseVoid",
    "Pipeline",
    "Progress",
    "StoreEventHandler",
    "Workers",
]
