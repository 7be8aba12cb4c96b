"""The engine image over HTTP alone, and on the volume of an older release.

The full contract is verified by `test_verified` on the same image; these tests cover the parts that depend on
an image: keys, files and their readers, and the data in its volume.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import apsw
import httpx
import pytest
import yaml
from PIL import Image, ImageDraw, ImageFont

from kb_engine.embed.registry import embedder_from
from kb_engine.store.sqlite.schema import MIGRATIONS, migrate
from tests.integration import docker_engine
from tests.integration.conftest import Images, RunningStack
from tests.integration.containers import Engine, Lab, Server, fill
from tests.support.patience import ANSWER_SECONDS, JOB_SECONDS
from tests.support.scans import pdf_of_sheets, scan
from tests.support.stack import ROOT

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


def test_probes_are_open_and_everything_else_wants_the_key(engine: Engine) -> None:
    """A platform's probes have no key; 401 names the scheme."""
    with httpx.Client(base_url=engine.url, timeout=ANSWER_SECONDS) as stranger:
        assert stranger.get("/healthz").status_code == stranger.get("/readyz").status_code == 200
        refused = stranger.get("/api/v1/documents")
    assert refused.status_code == 401
    assert refused.headers["WWW-Authenticate"].startswith("Bearer")


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
    """A new container on the same volume has the same data."""
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


def _tides() -> bytes:
    return Path(DOCUMENTS / "tides.md").read_bytes()


EMBEDDER = "hash"
OLD_TIME = "2024-05-06T07:08:09.000000Z"
NOTE = "Pensions are revalued every April"
FILE = "Herring spawn on gravel banks in autumn"


@pytest.fixture
def old_base(tmp_path: Path) -> Path:
    """A base of the first layout, as written by the first release: a note in memory, and a file."""
    path, embedder = tmp_path / "kb.sqlite", embedder_from(EMBEDDER)
    vectors = embedder.embed([NOTE, FILE])
    db = apsw.Connection(str(path))
    try:
        migrate(db, path, MIGRATIONS[:1])
        db.execute(
            "INSERT INTO meta VALUES ('embedder', ?), ('dimensions', ?)",
            (embedder.name, str(embedder.dimensions)),
        )
        db.execute(
            "INSERT INTO documents VALUES "
            "(3, '00000000-0000-4000-8000-000000000003', 'note', 'Pensions', 'note', NULL, NULL, '/n', 10, "
            "'h3', '{}', ?1), "
            "(5, '00000000-0000-4000-8000-000000000005', 'file', 'Herring', 'text', 'txt', 'f.txt', '/f', "
            "20, 'h5', '{}', ?1)",
            (OLD_TIME,),
        )
        db.execute("INSERT INTO note_texts VALUES (3, ?)", (NOTE,))
        db.execute("INSERT INTO document_tags VALUES (3, 'collection:memory'), (5, 'collection:documents')")
        for chunk, document, text, vector in ((11, 3, NOTE, vectors[0]), (12, 5, FILE, vectors[1])):
            db.execute(
                "INSERT INTO chunks (id, uid, document_id, position, text, page, heading, first, beyond) "
                "VALUES (?, ?, ?, 0, ?, NULL, NULL, 0, ?)",
                (chunk, f"00000000-0000-4000-8000-0000000000{chunk}", document, text, len(text)),
            )
            db.execute("INSERT INTO vectors VALUES (?, ?)", (chunk, vector.tobytes()))
        db.execute("INSERT INTO chunk_text (chunk_text) VALUES ('rebuild')")
        assert db.pragma("user_version") == 1
    finally:
        db.close()
    return path


@pytest.mark.requirement("E28", "E29")
def test_a_volume_of_the_first_layout_serves_under_todays_image(
    our_engine: str, images: Images, workshop: Lab, old_base: Path
) -> None:
    """Documents are found by words and by vector, and changed; the next container has the change."""
    network, volume = workshop.network(), workshop.volume()
    fill(volume, our_engine, {"engine/kb.sqlite": old_base})
    engine = Engine(our_engine, network, volume=volume, KB_EMBEDDER=EMBEDDER)
    server = Server(images.server, network)
    workshop.ready(engine, server)
    caller = server.caller()
    assert [document["id"] for document in engine.get("/documents", sort_order="asc")["documents"]] == [3, 5]
    for query, mode, document in (("revalued", "fts", 3), (FILE, "vector", 5)):
        found = caller.ok("kb_search", query=query, mode=mode, top=1)["results"]
        assert [result["document_id"] for result in found] == [document]
    assert caller.ok("kb_get", document_id=3)["collection"] == "memory"
    changed = caller.ok("kb_update_note", document_id=3, text="Pensions are revalued every May")
    assert (changed["id"], changed["created_at"]) == (3, OLD_TIME)
    added = caller.ok("kb_addnote", text="A note of today", wait_seconds=JOB_SECONDS)
    assert added["document_id"] > 5
    assert engine.stop() == 0
    engine.remove()

    again = Engine(our_engine, network, volume=volume, KB_EMBEDDER=EMBEDDER)
    workshop.ready(again)
    assert again.documents_with("May") == [3]
    assert again.documents_with("Herring") == [5]
    assert again.documents_with("today") == [added["document_id"]]


def test_a_base_that_is_newer_than_the_image_is_refused_and_left_alone(
    our_engine: str, workshop: Lab, tmp_path: Path
) -> None:
    """A downgraded engine exits at once, with the reason in one line."""
    path = tmp_path / "kb.sqlite"
    db = apsw.Connection(str(path))
    try:
        migrate(db, path, MIGRATIONS)
        db.pragma("user_version", len(MIGRATIONS) + 1)
    finally:
        db.close()
    volume = workshop.volume()
    fill(volume, our_engine, {"engine/kb.sqlite": path})
    engine = Engine(our_engine, workshop.network(), volume=volume, KB_EMBEDDER=EMBEDDER)
    workshop.started(engine)
    with pytest.raises(AssertionError, match="kb engine: "):
        engine.until_ready()
    assert engine.exit_status() == 1
