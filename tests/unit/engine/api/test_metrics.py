"""Metrics of the engine, read by Prometheus' own parser."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kb_contracts.access.key_file import KeyFile, rights_of
from kb_engine.settings import EngineSettings
from kb_server.observability.metrics import Metrics
from tests.support.engines import API_KEY, client_of, engine
from tests.support.eventually import eventually
from tests.support.patience import ANSWER_SECONDS
from tests.support.stack import ROOT

METRIC = re.compile(r"\b(?:kb|mcp|process)_\w+")
ADMINISTRATOR = {"Authorization": f"Bearer {API_KEY}"}


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_jobs_and_the_base_are_counted(tmp_path: Path) -> None:
    with engine(tmp_path) as url, client_of(url) as http:
        job = http.post("/api/v1/jobs", json={"text": "Bees keep warm."}).json()
        state = partial(http.get, f"/api/v1/jobs/{job['id']}")
        eventually(lambda: state().json()["status"], lambda status: status == "completed", what="the job")
        assert http.post("/api/v1/jobs", json={"text": "Bees keep warm."}).status_code == 202
        damaged = {"file": ("damaged.pdf", b"%PDF-1.4 damaged")}
        assert http.post("/api/v1/jobs", files=damaged).status_code == 202
        ended = partial(http.get, "/api/v1/status")
        eventually(lambda: ended().json()["queue"]["failed"], lambda failed: failed == 1, what="the failure")
        assert http.get("/api/v1/documents/99").status_code == 404
        assert http.get("/nowhere").status_code == 404
        answer = http.get("/metrics")
        found = samples(answer.text)
    assert answer.headers["Content-Type"].startswith("text/plain; version=")

    def value(name: str, **labels: str) -> float:
        return found[f"kb_engine_{name}", frozenset(labels.items())]

    assert value("documents") == value("passages") == value("passages_ingested_total") == 1
    assert value("jobs", state="completed") == value("job_duration_seconds_count", lane="short") == 2
    assert value("jobs_ended_total", lane="short", status="completed", code="") == 2
    failed = {name: dict(labels) for name, labels in found if ("status", "failed") in labels}
    assert failed["kb_engine_jobs_ended_total"]["code"] == "file_corrupt"
    assert value("jobs", state="queued") == value("oldest_queued_job_age_seconds") == value("issues") == 0
    assert value("storage_accessible") == 1
    assert value("free_disk_bytes") > value("base_bytes") > 0
    assert value("request_duration_seconds_count", operation="getDocument", status="404") == 1
    assert value("request_duration_seconds_count", operation="other", status="404") == 1
    assert any(name == "process_cpu_seconds_total" for name, _ in found)
    assert any(name == "kb_engine_build_info" and dict(labels)["model"] for name, labels in found)

    server = Metrics()
    server.count_call("kb_search", 0.01, "timeout")
    server.count_refusal("unauthorized")
    named = {name for name, _ in (*found, *samples(server.render()))}
    for panel in json.loads((ROOT / "deploy" / "prometheus" / "dashboard.json").read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            assert set(METRIC.findall(target["expr"])) <= named, panel["title"]


def test_metrics_are_for_administrators_of_the_whole_base(tmp_path: Path) -> None:
    keys = KeyFile(EngineSettings(home=tmp_path).keys_file)
    administers = rights_of(["read", "administer"])
    _, narrow = keys.create("narrow", rights=administers, collections=("memory",))
    _, reader = keys.create("reader", rights=rights_of(["read"]))
    with engine(tmp_path) as url:
        for token, status in ((narrow, 403), (reader, 403), ("wrong", 401), (API_KEY, 200)):
            answer = httpx.get(
                f"{url}/metrics", headers={"Authorization": f"Bearer {token}"}, timeout=ANSWER_SECONDS
            )
            assert answer.status_code == status
    with engine(tmp_path / "off", enable_metrics=False) as url:
        assert httpx.get(f"{url}/metrics", headers=ADMINISTRATOR, timeout=ANSWER_SECONDS).status_code == 404
