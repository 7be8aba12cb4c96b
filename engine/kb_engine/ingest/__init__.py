"""Ingestion: from an accepted job to a document that can be found."""

from kb_engine.ingest.hearing import Hearing
from kb_engine.ingest.kept import KeptBounds, KeptJobs
from kb_engine.ingest.pipeline import LeaseVoid, Pipeline
from kb_engine.ingest.steps import Progress
from kb_engine.ingest.waiting import JobEnds
from kb_engine.ingest.workers import Workers

__all__ = [
    "Hearing",
    "JobEnds",
    "KeptBounds",
    "KeptJobs",
    "LeaseVoid",
    "Pipeline",
    "Progress",
    "Workers",
]
