"""The engine image from outside: what any engine promises, through HTTP and nothing else.

The whole promise is `kb verify`'s; here stand the parts that an image can get wrong: keys, files, the data in
its volume, and being asked again.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.integration.conftest import Images, RunningStack
from tests.integration.containers import Engine, Lab
from tests.support.scans import pdf_of_sheets, scan
from tests.support.stack import ROOT

DOCUMENTS = ROOT / "examples" / "documents"


@pytest.fixture
def engine(stack: RunningStack) -> Engine:
    return stack.engine


def ended(engine: Engine, job: dict[str, Any]) -> dict[str, Any]:
    while job["status"] in {"queued", "running"}:
        job = engine.get(f"/jobs/{job['id']}", wait=20)
    return job


def completed(engine: Engine, job: dict[str, Any]) -> int:
    """The document of a job that must succeed."""
    job = ended(engine, job)
    assert job["status"] == "completed", job
    return int(job["document_id"])


def code(response: httpx.Response) -> str:
    assert response.headers["Content-Type"].split(";")[0] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == response.status_code
    assert problem["detail"]
    return str(problem["code"])


def test_probes_are_open_and_everything_else_wants_the_key(engine: Engine) -> None:
    """A platform asks without a key; 401 names the scheme."""
    with httpx.Client(base_url=engine.url) as stranger:
        assert stranger.get("/healthz").status_code == stranger.get("/readyz").status_code == 200
        refused = stranger.get("/api/v1/documents")
    assert refused.status_code == 401
    assert refused.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.requirement("E33")
def test_status_tells_version_model_and_counts(engine: Engine) -> None:
    status = engine.get("/status")
    assert status["version"].startswith("v3.")
    assert {"model", "device", "documents", "queue", "storage"} <= status.keys()


def test_a_note_becomes_a_document_that_is_found(engine: Engine) -> None:
    word = f"w{uuid4().hex}"
    job = engine.post("/jobs", json={"text": f"The {word} sails at dawn", "title": "Ship", "tags": ["sea"]})
    document = completed(engine, job)
    (result,) = engine.post("/search", json={"query": word, "mode": "fts"})["results"]
    assert (result["document"]["id"], result["document"]["title"], result["tags"]) == (
        document,
        "Ship",
        ["sea"],
    )
    assert 0 < result["score"] <= 1
    assert word in result["chunk"]["text"]


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("garden-soil.pdf", "elemental sulphur lowers the pH"),
        ("honey-bees.docx", "worker bee egg to adult"),
        ("tea.html", "green tea oxidised"),
        ("tides.md", "spring tides full moon"),
    ],
)
def test_a_file_of_each_kind_is_taken_in_and_found(engine: Engine, name: str, query: str) -> None:
    path = DOCUMENTS / name
    job = engine.post(
        "/jobs", files={"file": (name, path.read_bytes())}, data={"source_path": str(path.name)}
    )
    document = completed(engine, job)
    found = engine.post("/search", json={"query": query, "top": 5})["results"]
    assert document in [result["document"]["id"] for result in found]
    assert [each["id"] for each in engine.get("/documents", source_path=name)["documents"]] == [document]


@pytest.mark.usefixtures("our_engine")
def test_a_picture_is_read_with_what_the_image_carries(engine: Engine) -> None:
    picture, file = Image.new("RGB", (500, 100), "white"), BytesIO()
    font = ImageFont.load_default(size=30)
    ImageDraw.Draw(picture).text((20, 30), "obsidian and pumice", fill="black", font=font)
    picture.save(file, "PNG")
    document = completed(engine, engine.post("/jobs", files={"file": ("sign.png", file.getvalue())}))
    assert engine.get(f"/documents/{document}")["extraction_method"] == "image_analysis"
    assert document in engine.documents_with("obsidian")


def test_a_scanned_page_is_read_with_what_the_image_carries(engine: Engine) -> None:
    data = pdf_of_sheets([scan(["tourmaline and beryl"])])
    document = completed(engine, engine.post("/jobs", files={"file": ("scan.pdf", data)}))
    told = engine.get(f"/documents/{document}")
    assert (told["extraction_method"], told["status"], told["pages"]) == ("image_analysis", "searchable", 1)


def test_tags_narrow_a_search_all_of_them(engine: Engine) -> None:
    """A collection therefore never leaks into another."""
    word = f"w{uuid4().hex}"
    both = completed(engine, engine.post("/jobs", json={"text": f"{word} one", "tags": ["x", "y"]}))
    completed(engine, engine.post("/jobs", json={"text": f"{word} two", "tags": ["x"]}))
    found = engine.post("/search", json={"query": word, "mode": "fts", "tags": ["x", "y"]})["results"]
    assert [result["document"]["id"] for result in found] == [both]


def test_a_note_is_replaced_in_place_and_a_stale_version_is_refused(engine: Engine) -> None:
    """Same id and creation, a new version; found by its new words alone."""
    old, new = f"w{uuid4().hex}", f"w{uuid4().hex}"
    document = completed(engine, engine.post("/jobs", json={"text": f"about {old}"}))
    before = engine.get(f"/documents/{document}")
    patched = engine.http.patch(f"/api/v1/notes/{document}", json={"text": f"about {new}"}).json()
    assert (patched["id"], patched["created_at"]) == (document, before["created_at"])
    assert patched["version"] > before["version"]
    assert engine.documents_with(old) == []
    assert engine.documents_with(new) == [document]
    stale = {"text": "other", "expected_version": before["version"]}
    assert code(engine.http.patch(f"/api/v1/notes/{document}", json=stale)) == "version_conflict"


def test_a_tag_is_changed_only_under_the_version_that_was_seen(engine: Engine) -> None:
    """Two who move a document at once cannot both succeed."""
    document = completed(engine, engine.post("/jobs", json={"text": f"w{uuid4().hex}", "tags": ["from"]}))
    seen = f'"{engine.get(f"/documents/{document}")["version"]}"'
    path = f"/api/v1/documents/{document}/tags"
    first = engine.http.delete(f"{path}/from", headers={"If-Match": seen})
    assert first.is_success, first.text
    late = engine.http.post(path, json={"tags": ["elsewhere"]}, headers={"If-Match": seen})
    assert code(late) == "version_conflict"
    assert engine.get(f"/documents/{document}")["tags"] == []


def test_the_same_request_under_one_key_is_one_job(engine: Engine) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    body = {"text": f"w{uuid4().hex}"}
    first = engine.post("/jobs", json=body, headers=key)
    assert engine.post("/jobs", json=body, headers=key)["id"] == first["id"]
    other = engine.http.post("/api/v1/jobs", json={"text": "other"}, headers=key)
    assert code(other) == "idempotency_mismatch"


def test_the_same_text_twice_is_one_document_in_its_scope(engine: Engine) -> None:
    text = f"w{uuid4().hex} again"
    here = completed(engine, engine.post("/jobs", json={"text": text, "dedup_scope": "here"}))
    again = ended(engine, engine.post("/jobs", json={"text": text, "dedup_scope": "here"}))
    assert (again["document_id"], again["deduplicated"]) == (here, True)
    assert completed(engine, engine.post("/jobs", json={"text": text, "dedup_scope": "there"})) != here


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/documents/999999", None, "document_not_found"),
        ("GET", "/jobs/8b4e8f0e-9d1c-4c53-9c1a-5f2f6f0c9d11", None, "job_not_found"),
        ("PATCH", "/notes/999999", {"text": "x"}, "document_not_found"),
        ("POST", "/search", {"query": "x", "fts_only": True, "mode": "vector"}, "contradiction"),
        ("POST", "/search", {"query": "x", "top": 0}, "invalid_parameter"),
        ("POST", "/search", {"query": "x", "unknown": 1}, "unknown_parameter"),
        ("POST", "/jobs", {"text": " "}, "invalid_parameter"),
    ],
)
def test_what_is_wrong_has_a_stable_code(
    engine: Engine, method: str, path: str, body: dict[str, Any] | None, expected: str
) -> None:
    response = engine.http.request(method, f"/api/v1{path}", json=body)
    assert code(response) == expected


def test_the_base_is_in_the_volume(images: Images, workshop: Lab) -> None:
    network, volume = workshop.network(), workshop.volume()
    word = f"w{uuid4().hex}"
    first = Engine(images.engine, network, volume=volume)
    workshop.ready(first)
    document = completed(first, first.post("/jobs", json={"text": f"{word} stays", "tags": ["t"]}))
    file = completed(first, first.post("/jobs", files={"file": ("tides.md", _tides())}))
    assert first.stop() == 0
    first.remove()

    second = Engine(images.engine, network, volume=volume)
    workshop.ready(second)
    assert second.documents_with(word) == [document]
    assert [each["id"] for each in second.get("/documents", sort_order="asc")["documents"]] == [
        document,
        file,
    ]


def _tides() -> bytes:
    return Path(DOCUMENTS / "tides.md").read_bytes()
