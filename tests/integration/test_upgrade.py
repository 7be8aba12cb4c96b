"""A newer image on the volume of an older one: everything is there, and stays there."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from kb_engine.embed.registry import embedder_from
from kb_engine.store.sqlite.schema import MIGRATIONS, migrate
from tests.integration.conftest import Images
from tests.integration.containers import Engine, Lab, Server, fill

EMBEDDER = "hash"
OLD_TIME = "2024-05-06T07:08:09.000000Z"
NOTE = "Pensions are revalued every April"
FILE = "Herring spawn on gravel banks in autumn"


@pytest.fixture
def old_base(tmp_path: Path) -> Path:
    """A base of the first layout, as the first release left it: a note in memory, and a file."""
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
    """Found by words and by meaning, changed in place through the server; and the next container agrees."""
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
    added = caller.ok("kb_addnote", text="A note of today", wait_seconds=20)
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
