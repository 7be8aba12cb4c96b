"""The engine image over HTTP alone, and on the volume of an older release.

The full contract is verified by `test_verified` on the same image; these tests cover the parts that depend on
an image: keys, files and their readers, and the data in its volume.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any
from uuid import uuid4

import pytest
import yaml
from PIL import Image, ImageDraw, ImageFont

from tests.integration import docker_engine
from tests.integration.conftest import Images, RunningStack
from tests.integration.containers import Engine, Lab
from tests.support.scans import pdf_of_sheets, scan
from tests.support.stack import ROOT

pytestmark = pytest.mark.process

DOCUMENTS = ROOT / "examples" / "documents"
BACKUP = ROOT / "deploy" / "kubernetes" / "overlays" / "sqlite" / "backup.yml"


@pytest.fixture
def engine(stack: RunningStack) -> Engine:
    return stack.engine


def ended(engine: Engine, job: dict[str, Any]) -> dict[str, Any]:
    while job["status"] in {"queued", "running"}:
        job = engine.get(f"/jobs/{job['id']}", wait=20)
    return job


def completed(engine: Engine, job: dict[str, Any]) -> int:
    """Return the document of a job that must succeed."""
    job = ended(engine, job)
    assert job["status"] == "completed", job
    return int(job["document_id"])


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
    """The recognizer, its models and their libraries are in the image."""
    picture, file = Image.new("RGB", (500, 100), "white"), BytesIO()
    font = ImageFont.load_default(size=30)
    ImageDraw.Draw(picture).text((20, 30), "obsidian and pumice", fill="black", font=font)
    picture.save(file, "PNG")
    document = completed(engine, engine.post("/jobs", files={"file": ("sign.png", file.getvalue())}))
    assert engine.get(f"/documents/{document}")["extraction_method"] == "image_analysis"
    assert document in engine.documents_with("obsidian")


def test_a_scanned_page_is_read_with_what_the_image_carries(engine: Engine) -> None:
    """PDFium is in a package as well and needs no system library."""
    data = pdf_of_sheets([scan(["tourmaline and beryl"])])
    document = completed(engine, engine.post("/jobs", files={"file": ("scan.pdf", data)}))
    told = engine.get(f"/documents/{document}")
    assert (told["extraction_method"], told["status"], told["pages"]) == ("image_analysis", "searchable", 1)


def test_the_base_is_in_the_volume(images: Images, workshop: Lab) -> None:
    network, volume = workshop.network(), workshop.volume()
    word = f"w{uuid4().hex}"
    first = Engine(images.engine, network, volume=volume)
    workshop.ready(first)
    document = completed(first, first.post("/jobs", json={"text": f"{word} stays", "tags": ["t"]}))
    file = completed(
        first, first.post("/jobs", files={"file": ("tides.md", (DOCUMENTS / "tides.md").read_bytes())})
    )
    assert first.stop() == 0
    first.remove()

    second = Engine(images.engine, network, volume=volume)
    workshop.ready(second)
    assert second.documents_with(word) == [document]
    assert [each["id"] for each in second.get("/documents", sort_order="asc")["documents"]] == [
        document,
        file,
    ]


def test_the_slim_image_serves_a_base_in_sqlite_and_copies_it_as_the_cronjob_does(
    our_engine: str, workshop: Lab
) -> None:
    """It has no OCR and no clients of PostgreSQL and Qdrant, and is smaller for it."""
    slim = docker_engine.build("engine-slim", "kb-engine-slim:test")
    size, whole = (docker_engine.inspect("image", name)["Size"] for name in (slim, our_engine))
    assert size < 0.75 * whole
    engine = Engine(slim, workshop.network(), volume=workshop.volume(), KB_EMBEDDER="hash")
    workshop.ready(engine)
    completed(engine, engine.post("/jobs", json={"text": "Herring spawn in autumn"}))
    assert engine.documents_with("herring")
    for module in ("rapidocr", "asyncpg", "qdrant_client"):
        assert "ModuleNotFoundError" in engine.fails("python", "-c", f"import {module}")
    _, cron = yaml.safe_load_all(BACKUP.read_text("utf-8"))
    (script,) = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
    engine.run("sh", "-ec", f"mkdir /tmp/backups\n{script.replace('/backups', '/tmp/backups')}")
    assert "backup.json" in engine.run("sh", "-c", "ls /tmp/backups/*")
