"""Databases as bases: creation, binding of the embedder, and errors on opening."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import asyncpg
import msgspec
import numpy as np
import pytest

from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.documents import WHITE_SPACE, note_hash, text_digest
from kb_contracts.semantics.query import Wording
from kb_engine.address import address_of
from kb_engine.store.port import (
    BaseTooNew,
    BaseUnreachable,
    BaseUnwritable,
    EmbedderIdentity,
    EmbedderMismatch,
    NotABase,
    Prepared,
)
from kb_engine.store.postgres import connection, schema
from kb_engine.store.postgres.connection import as_engine_errors, from_base, to_base
from kb_engine.store.postgres.postgres_store import open_postgres
from kb_engine.store.postgres.search import renewal
from kb_engine.store.postgres.word_order import order_of
from kb_engine.store.repository.content import passages_hash
from tests.support.eventually import eventually_async
from tests.support.postgres import PASSWORD, Database, give_back, new_database
from tests.support.stores import EMBEDDER, axis, new_note, opened, prepared, visit

pytestmark = pytest.mark.process

UNKNOWN = EmbedderIdentity(EMBEDDER.name, 0)
"""The identity of an endpoint that has not responded yet."""


def shortened(made: Prepared, dimensions: int) -> Prepared:
    """The same chunks from an embedder with shorter vectors."""
    return replace(made, vectors=made.vectors[:, :dimensions])


async def test_words_of_an_earlier_analyser_are_indexed_again_while_the_engine_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Documents without a language are given theirs."""
    monkeypatch.setattr(renewal, "SLICE", 1)
    place = await new_database()
    async with opened(place) as base:
        text = "Die Häuser wurden alle im letzten Jahr verkauft."
        made_of = prepared(text, "Danach", title="Häuser", language="de")
        await base.ingest(new_note(text, title="Häuser"), made_of)
        made = "SELECT string_agg(postings::text, ' ' ORDER BY term COLLATE \"C\") FROM postings"
        terms, words = await place.value(made), await place.value("SELECT words FROM totals")
        language = await place.value("SELECT language FROM documents")
    assert "^de|haus" in terms
    assert language == "de"
    await place.execute(
        "DELETE FROM postings WHERE term LIKE '^%'; DELETE FROM word_orders; "
        "UPDATE chunks SET words = words + 1; "
        "UPDATE base SET words = words + 2; UPDATE documents SET language = NULL; "
        "INSERT INTO outdated_words VALUES (1), (99)"
    )
    async with opened(place) as base:
        found = await base.find("", "vector", vector=axis(0), wording=Wording(["wurden alle"]))
        assert [result.chunk.text for result in found.results] == [text]
        base.store.subscribe(lambda _event: None)
        left = "SELECT count(*) FROM outdated_words"
        await eventually_async(lambda: place.value(left), lambda count: count == 0, what="the renewal")
        assert await base.titles("Haus") == ["Häuser"] * 2
    order = await place.value("SELECT words FROM word_orders ORDER BY chunk_id")
    assert order == order_of("Häuser", "", text)
    assert await place.value(made) == terms
    assert await place.value("SELECT words FROM totals") == words
    assert await place.value("SELECT language FROM documents") == language
    give_back(place)


async def test_engines_that_start_together_make_one_base() -> None:
    empty = await new_database(empty=True)
    stores = await asyncio.gather(
        *(open_postgres(empty.address, embedder=EMBEDDER, wait=0) for _ in range(6))
    )
    try:
        assert await empty.value("SELECT version FROM layout") == len(schema.MIGRATIONS)
        await asyncio.gather(*(store.ping() for store in stores))
    finally:
        await asyncio.gather(*(store.close() for store in stores))


@pytest.mark.parametrize("text", ["granite \u00e9", "\0", "\1\1\0\2\1", "a\\000\\\\\0\\001\1\2\\"], ids=ascii)
async def test_existing_notes_are_known_without_trailing_white_space(text: str) -> None:
    empty = await new_database(empty=True)
    kept = to_base(f"{text}{WHITE_SPACE}")
    await empty.execute("CREATE EXTENSION vector")
    await empty.ask(lambda db: schema.migrate(db, empty.address, schema.MIGRATIONS[:14]))
    for number, kind in enumerate(("note", "file"), 1):
        await empty.execute(
            "INSERT INTO documents (id, uid, kind, title, doc_type, size_bytes, sha256, metadata, "
            "dedup_scope, status, extraction_method, chunk_count, token_count, created_at, updated_at) "
            f"VALUES ({number}, '{number}', '{kind}', 'x', 'note', 1, 'h', '{{}}', '', 'searchable', 'text', "
            "0, 0, '', '')"
        )
    await empty.ask(lambda db: db.execute("INSERT INTO note_texts VALUES (1, $1)", kept))
    await empty.ask(lambda db: schema.migrate(db, empty.address, schema.MIGRATIONS))
    assert await empty.value("SELECT note_hash FROM documents WHERE id = 1") == note_hash(text)
    assert await empty.value("SELECT note_hash FROM documents WHERE id = 2") is None
    assert await empty.value("SELECT text FROM note_texts") == kept


async def test_originals_of_versions_with_a_nul_are_known() -> None:
    empty = await new_database(empty=True)
    await empty.execute("CREATE EXTENSION vector")
    await empty.ask(lambda db: schema.migrate(db, empty.address, schema.MIGRATIONS[:12]))
    for number, kind in enumerate(("file", "note"), 1):
        members = msgspec.json.encode({"title": "\0\\u0000\0", "kind": kind, "sha256": r"h\u0000\\"}).decode()
        await empty.execute(
            "INSERT INTO versions (document_id, uid, version, removed, kept_at, expires_at, members, text, "
            f"passages) VALUES ({number}, 'u', 1, true, '', '', '{members}', '', '[]')"
        )
    await empty.ask(lambda db: schema.migrate(db, empty.address, schema.MIGRATIONS))
    original = "SELECT original FROM versions WHERE document_id = {}"
    assert await empty.value(original.format(1)) == r"h\u0000\\"
    assert await empty.value(original.format(2)) is None


async def test_existing_words_get_the_language_of_their_document() -> None:
    empty = await new_database(empty=True)
    await empty.execute("CREATE EXTENSION vector")
    await empty.ask(lambda db: schema.migrate(db, empty.address, schema.MIGRATIONS[:16]))
    for number, language in enumerate(("'de'", "'en'", "NULL"), 1):
        await empty.execute(
            "INSERT INTO documents (id, uid, kind, title, doc_type, size_bytes, sha256, metadata, "
            "dedup_scope, status, extraction_method, chunk_count, token_count, created_at, updated_at, "
            f"language) VALUES ({number}, '{number}', 'file', 'x', 'text', 1, 'h', '{{}}', '', 'searchable', "
            f"'text', 1, 0, '', '', {language})"
        )
        await empty.execute(
            "INSERT INTO chunks (id, uid, document_id, position, text, first, beyond, words, tokens) "
            f"VALUES ({number}, 'u', {number}, 0, 'x', 0, 1, 1, 1)"
        )
        for term in ("haus", "node.js", "中", "中 国"):
            await empty.execute(
                f"INSERT INTO postings (term, chunk_id, frequency, length) VALUES ('{term}', {number}, 1, 1)"
            )
    await empty.ask(lambda db: schema.migrate(db, empty.address, schema.MIGRATIONS))
    terms = "SELECT string_agg(term, ',' ORDER BY term) FROM postings WHERE chunk_id = {}"
    assert await empty.value(terms.format(1)) == "de|haus,node.js,中,中 国"
    for number in (2, 3):
        assert await empty.value(terms.format(number)) == "haus,node.js,中,中 国"


async def test_existing_texts_have_their_hashes_unless_passages_are_missing() -> None:
    """Nor has a text that the database cannot keep as it is, until its document changes."""
    empty = await new_database(empty=True)
    await empty.execute("CREATE EXTENSION vector")
    await empty.ask(lambda db: schema.migrate(db, empty.address, schema.MIGRATIONS[:15]))
    texts = {1: ["granite \u00e9", "b"], 2: ["only the first"], 3: [], 4: ["with\0nul", "c"]}
    for number, passages in texts.items():
        count = 2 if number in (1, 2, 4) else 0
        await empty.execute(
            "INSERT INTO documents (id, uid, kind, title, doc_type, size_bytes, sha256, metadata, "
            "dedup_scope, status, extraction_method, chunk_count, token_count, created_at, updated_at) "
            f"VALUES ({number}, '{number}', 'file', 'x', 'text', 1, 'h', '{{}}', '', 'searchable', 'text', "
            f"{count}, 0, '', '')"
        )
        for position, text in enumerate(passages):
            await empty.execute(
                "INSERT INTO chunks (id, uid, document_id, position, text, first, beyond, words, tokens) "
                f"VALUES ({10 * number + position}, 'u', {number}, {position}, '{to_base(text)}', 0, 1, 1, 1)"
            )
    for number, text in enumerate(("granite \u00e9", "\0"), 1):
        await empty.execute(
            "INSERT INTO versions (document_id, uid, version, removed, kept_at, expires_at, members, text, "
            f"passages) VALUES ({number}, 'u', 1, true, '', '', '{{}}', '{to_base(text)}', '[]')"
        )
    await empty.ask(lambda db: schema.migrate(db, empty.address, schema.MIGRATIONS))
    known = "SELECT passages_hash FROM documents WHERE id = {}"
    found = [await empty.value(known.format(number)) for number in texts]
    assert found == [passages_hash(texts[1]), None, passages_hash([]), None]
    known = "SELECT text_hash FROM versions WHERE document_id = {}"
    assert await empty.value(known.format(1)) == text_digest("granite \u00e9")[0]
    assert await empty.value(known.format(2)) is None


async def test_a_migration_that_the_server_gave_up_is_tried_again(database: Database) -> None:
    """The migration may deadlock with a search of a running engine."""
    await database.execute("CREATE SEQUENCE tries")
    extra = "DO $$ BEGIN IF nextval('tries') = 1 THEN RAISE deadlock_detected; END IF; END $$"
    migrations = (*schema.MIGRATIONS, extra)
    await database.ask(lambda db: schema.migrate(db, database.address, migrations))
    assert await database.value("SELECT last_value FROM tries") == 2
    assert await database.value("SELECT version FROM layout") == len(migrations)
    await database.execute(f"DROP SEQUENCE tries; UPDATE layout SET version = {len(schema.MIGRATIONS)}")


async def test_a_base_of_a_later_engine_is_refused_unchanged(database: Database) -> None:
    before = await database.value("SELECT version FROM layout")
    await database.execute("UPDATE layout SET version = 999")
    with pytest.raises(BaseTooNew, match="version 999") as caught:
        await visit(database)
    assert "\n" not in str(caught.value)
    await database.execute(f"UPDATE layout SET version = {before}")


async def test_of_engines_with_two_embedders_one_gets_a_new_base(database: Database) -> None:
    other = EmbedderIdentity("other", 3)
    answers = await asyncio.gather(
        *(open_postgres(database.address, embedder=one, wait=0) for one in (EMBEDDER, other)),
        return_exceptions=True,
    )
    stores = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(stores) == 1
    assert sum(isinstance(answer, EmbedderMismatch) for answer in answers) == 1
    await stores[0].close()


async def test_of_engines_whose_endpoints_differ_the_first_vectors_bind_the_base(database: Database) -> None:
    """They started together, before either endpoint had responded; vectors of another length are refused."""
    async with opened(database, embedder=UNKNOWN) as first, opened(database, embedder=UNKNOWN) as second:
        jobs = [await base.lease(new_note(text)) for base, text in ((first, "eight"), (second, "three"))]
        answers = await asyncio.gather(
            first.commit(jobs[0], prepared("eight")),
            second.commit(jobs[1], shortened(prepared("three"), 3)),
            return_exceptions=True,
        )
        (refused,) = [answer for answer in answers if isinstance(answer, EngineError)]
        assert refused.code == "not_ready"
        assert "Start this engine again with the embedder of the base" in refused.detail
        lengths = await database.value("SELECT array_agg(DISTINCT vector_dims(vector)) FROM vectors")
        assert lengths == [await database.value("SELECT dimensions FROM base")]
        assert await first.count("documents") == await first.count("chunks") == 1


async def test_an_engine_that_comes_late_with_another_length_is_refused(database: Database) -> None:
    """In changes and in semantic searches; keyword searches work, and its job is left to other engines."""
    async with opened(database, embedder=UNKNOWN) as first, opened(database, embedder=UNKNOWN) as late:
        note = await first.note("words", vectors=[axis(1)])
        job = await late.lease(new_note("a"))
        short = shortened(prepared("a"), 7)
        assert late.store.dimensions == 0
        for refused in (
            late.commit(job, short),
            late.update(note.id, "b", short, version=1),
            late.find("words", "vector", vector=short.vectors[0]),
            late.find("words", "hybrid", vector=short.vectors[0]),
        ):
            with pytest.raises(EngineError, match=r"filled by test \(8 dimensions\).*vectors of 7") as caught:
                await refused
            assert caught.value.code == "not_ready"
        assert (await late.find("words")).total == 1
        assert (await late.detail(note.id)).version == 1
        assert await late.commit(job, prepared("a")) is not None
        assert late.store.dimensions == first.store.dimensions == len(axis(1))


async def test_first_vectors_that_are_not_committed_bind_nothing(database: Database) -> None:
    async with opened(database, embedder=UNKNOWN) as first, opened(database, embedder=UNKNOWN) as second:
        job = await first.lease(new_note("a"))
        broken = replace(prepared("a"), vectors=np.full((1, 8), np.nan, np.float32))
        with pytest.raises(asyncpg.DataError):
            await first.commit(job, broken)
        assert (first.store.dimensions, await database.value("SELECT dimensions FROM base")) == (0, 0)
        assert await second.commit(job, shortened(prepared("a"), 5)) is not None
        assert second.store.dimensions == await database.value("SELECT dimensions FROM base") == 5


async def test_a_base_without_vectors_goes_to_the_embedder_that_comes_last(database: Database) -> None:
    """A restart corrects a misspelt name; an engine that still uses it cannot fill the base."""
    async with opened(database, embedder=EmbedderIdentity("misspelt", 0)) as before:
        job = await before.lease(new_note("a"))
        async with opened(database, embedder=UNKNOWN) as base:
            with pytest.raises(EngineError, match=r"embedder test, and this engine .* misspelt"):
                await before.commit(job, prepared("a"))
            assert await base.commit(job, prepared("a")) is not None


async def test_a_layout_that_is_not_what_its_number_says_is_refused_in_one_line(database: Database) -> None:
    await database.execute("ALTER TABLE base RENAME COLUMN embedder TO theirs")
    try:
        with pytest.raises(NotABase, match='column "embedder" does not exist') as caught:
            await visit(database)
        assert "\n" not in str(caught.value)
    finally:
        await database.execute("ALTER TABLE base RENAME COLUMN theirs TO embedder")


async def test_the_schema_of_another_program_is_refused_unchanged() -> None:
    empty = await new_database(empty=True)
    await empty.execute("CREATE SCHEMA kb; CREATE TABLE kb.theirs (x integer)")
    with pytest.raises(NotABase, match="another program"):
        await visit(empty)
    assert (
        await empty.value("SELECT string_agg(tablename, ',') FROM pg_tables WHERE schemaname = 'kb'")
        == "theirs"
    )


async def test_tables_of_other_programs_in_the_database_are_ignored() -> None:
    empty = await new_database(empty=True)
    await empty.execute("CREATE TABLE public.documents (x integer)")
    async with opened(empty) as base:
        await base.note("a")
    assert await empty.value("SELECT count(*) FROM public.documents") == 0


async def test_a_pooler_of_another_database_is_refused(database: Database) -> None:
    other = await new_database()
    with pytest.raises(NotABase, match="KB_POSTGRES_POOLER leads to another database"):
        await open_postgres(database.address, embedder=EMBEDDER, pooler=other.address)
    give_back(other)


async def test_a_pooler_that_starts_after_the_engine_is_waited_for(database: Database) -> None:
    is_up = False

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            target.write(data)
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal is_up
        if is_up:
            beyond, to_it = await asyncio.open_connection("127.0.0.1", database.server.port)
            await asyncio.gather(copy(reader, to_it), copy(beyond, writer))
        writer.close()
        is_up = True

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as pooler:
        url = f"postgresql://kb@127.0.0.1:{pooler.sockets[0].getsockname()[1]}/{database.name}"
        store = await open_postgres(database.address, embedder=EMBEDDER, pooler=address_of(url))
        await store.ping()
        await store.close()


async def test_a_database_user_without_write_permission_is_refused(database: Database) -> None:
    name = f"reader_of_{database.name}"
    await database.execute(f"CREATE ROLE {name} LOGIN")
    url = database.url.replace("kb:", f"{name}:", 1)
    with pytest.raises(BaseUnwritable, match="right to write"):
        await open_postgres(address_of(url), embedder=EMBEDDER, wait=0)
    await database.execute(f"DROP ROLE {name}")


@pytest.mark.parametrize(
    ("old", "new"), [("/kb_", "/no_such_"), ("127.0.0.1:", "127.0.0.1:1"), ("kb:", "stranger:")]
)
async def test_a_server_that_lets_nobody_in_is_one_line_without_the_password(
    database: Database, old: str, new: str
) -> None:
    url = database.url.replace(old, new, 1)
    if new.endswith(":1"):
        url = url.replace(f"1{database.server.port}", "1", 1)
    with pytest.raises(BaseUnreachable, match="KB_STORE") as caught:
        await open_postgres(address_of(url), embedder=EMBEDDER, wait=0)
    assert "\n" not in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert str(address_of(url)) in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://kb@/{name}?host={server.folder}&port={server.port}",
        "postgresql://kb@{refusing},{silent},127.0.0.1:{server.port}/{name}?target_session_attrs=read-write",
    ],
)
async def test_a_base_is_reached_by_a_socket_and_at_the_last_of_several_hosts(
    database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HOST_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        hosts = {"refusing": "127.0.0.1:1", "silent": f"127.0.0.1:{server.getsockname()[1]}"}
        url = url.format(name=database.name, server=database.server, **hosts)
        store = await open_postgres(address_of(url), embedder=EMBEDDER, wait=0)
        await store.ping()
        # The server notices the loss of an engine, unless they share a machine.
        held = await store.read(lambda read: read.value("SHOW tcp_keepalives_idle"))
        assert held == ("0" if "host=" in url else "15")
        await store.close()


async def test_the_extension_may_lie_in_a_schema_of_its_own() -> None:
    empty = await new_database(empty=True)
    await empty.execute('CREATE SCHEMA "My Own"; CREATE EXTENSION vector SCHEMA "My Own"')
    async with opened(empty) as base:
        await base.note("a", vectors=[axis(1)])
        assert (await base.find("", "vector", vector=axis(1))).results[0].score == 1.0


@pytest.mark.parametrize("text", ["", "a", "\0", "\1", "\0\1\0", "\1\1", "\1\2", "a\0b\1c\2", "\0" * 5])
def test_text_with_nul_is_kept_without_it_and_comes_back(text: str) -> None:
    assert "\0" not in to_base(text)
    assert from_base(to_base(text)) == text


def test_texts_keep_their_order() -> None:
    """Lists are then sorted, and prefixes found, as in SQLite."""
    texts = ["", "\0", "\0\0", "\0a", "\1", "\1\1", "\1\2", "\2", "a", "a\0", "a\1", "ab"]
    assert sorted(texts, key=to_base) == sorted(texts)


async def test_every_fault_of_the_driver_has_its_code() -> None:
    """Errors caused by the caller are not reported as the server's."""
    told = {
        asyncpg.DiskFullError("x"): "storage_full",
        asyncpg.DiskFullError(
            'could not resize shared memory segment "/PostgreSQL.1" to 8 bytes: No space left on device'
        ): "not_ready",
        asyncpg.DiskFullError("konnte Größe von Shared-Memory-Segment »/PostgreSQL.1« nicht ändern"): (
            "not_ready"
        ),
        asyncpg.AdminShutdownError("x"): "not_ready",
        asyncpg.CannotConnectNowError("x"): "not_ready",
        asyncpg.TooManyConnectionsError("x"): "not_ready",
        asyncpg.ConnectionDoesNotExistError("x"): "not_ready",
        asyncpg.ReadOnlySQLTransactionError("x"): "not_ready",
        asyncpg.DeadlockDetectedError("x"): "not_ready",
        asyncpg.SerializationError("x"): "not_ready",
        ConnectionRefusedError(): "not_ready",
        TimeoutError(): "not_ready",
    }
    for error, code in told.items():
        with pytest.raises(EngineError) as caught, as_engine_errors():
            raise error
        assert caught.value.code == code
    with pytest.raises(ValueError, match="own"), as_engine_errors():
        raise asyncpg.exceptions._base.DataError("our own")
