"""`GET /metrics` of an engine, in the text format of Prometheus.

Requests are counted as they are answered. The figures of the base (jobs, documents, sizes, issues) are read
when they are asked for, from the status. A process has its own figures; engines on one base report the same
figures of the base. Calls within the process (`kb up --single`) are not requests, and are not counted.
"""

from __future__ import annotations

from datetime import UTC, datetime

import prometheus_client as prometheus
from aiohttp import hdrs, web

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_engine.api.engine import StateApi
from kb_engine.ingest.workers import JobEnd
from kb_engine.store.clock import parse
from kb_http.mount import access_of_request

METRICS_PATH = "/metrics"
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the durations of requests, in seconds, inclusive."""
JOB_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""Upper bounds of the durations of jobs, in seconds, inclusive."""


class EngineMetrics:
    """The metrics of one engine, from its requests and from the `state` of its base."""

    def __init__(self, state: StateApi) -> None:
        self._state = state
        self._registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self._registry)
        self.durations = prometheus.Histogram(
            "kb_engine_request_duration_seconds",
            "Duration of requests.",
            ("operation", "status"),
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._jobs_ended = prometheus.Counter(
            "kb_engine_jobs_ended",
            "Jobs that were completed or failed.",
            ("lane", "status", "code"),
            registry=self._registry,
        )
        self._job_durations = prometheus.Histogram(
            "kb_engine_job_duration_seconds",
            "Time from the acceptance of a job to its completion, when its document can be searched.",
            ("lane",),
            buckets=JOB_BUCKETS,
            registry=self._registry,
        )
        self._passages = prometheus.Counter(
            "kb_engine_passages_ingested", "Passages of completed jobs.", registry=self._registry
        )

    def job_ended(self, end: JobEnd) -> None:
        """Count a job that has ended in this process."""
        self._jobs_ended.labels(end.lane, "failed" if end.code else "completed", end.code).inc()
        self._passages.inc(end.passages)
        if end.job is not None and end.job.finished_at is not None:
            seconds = (parse(end.job.finished_at) - parse(end.job.created_at)).total_seconds()
            self._job_durations.labels(end.lane).observe(max(0.0, seconds))

    def install(self, app: web.Application) -> None:
        """Serve the metrics of `app` at `METRICS_PATH`."""
        app.router.add_get(METRICS_PATH, self._serve)

    async def _serve(self, request: web.Request) -> web.Response:
        access = access_of_request(request)
        if access.reach is not None or "administer" not in access.rights:
            raise EngineError("forbidden", "Metrics need a key that may administer, in all collections.")
        status, oldest = await self._state.whole(), await self._state.oldest_queued()
        body = prometheus.generate_latest(self._registry) + prometheus.generate_latest(
            _of_the_base(status, oldest)
        )
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: prometheus.CONTENT_TYPE_LATEST})


def _of_the_base(status: m.Status, oldest: str | None) -> prometheus.CollectorRegistry:
    """Return the figures of a status; the age of the oldest queued job is left out if it is unknown."""
    registry, storage = prometheus.CollectorRegistry(), status.storage
    build = prometheus.Info("kb_engine_build", "Version and model of the engine.", registry=registry)
    build.info({"version": status.version, "model": status.model.name})
    jobs = prometheus.Gauge("kb_engine_jobs", "Jobs by state.", ("state",), registry=registry)
    for state in status.queue.__struct_fields__:
        jobs.labels(state).set(getattr(status.queue, state))
    figures: list[tuple[str, str, float]] = [
        ("documents", "Documents in the base.", status.documents.total),
        ("passages", "Passages in the base.", status.chunks),
        ("base_bytes", "Size of the base on disk, its index included.", storage.bytes),
        (
            "free_disk_bytes",
            "Free space on the fuller disk, of the base or of uploads.",
            storage.free_bytes,
        ),
        ("failed_upload_bytes", "Size of the kept input of failed jobs.", storage.failed_bytes),
        ("storage_accessible", "1 if the base could be read.", storage.accessible),
        ("issues", "Issues that the status names.", len(status.issues)),
    ]
    if storage.accessible:
        age = 0.0 if oldest is None else max(0.0, (datetime.now(UTC) - parse(oldest)).total_seconds())
        words = "Age of the oldest queued job; 0 without one."
        figures.append(("oldest_queued_job_age_seconds", words, age))
    for name, words, value in figures:
        prometheus.Gauge(f"kb_engine_{name}", words, registry=registry).set(value)
    return registry
