"""The commands against a real engine: effects, output and exit statuses."""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kb_cli import client
from kb_cli.command_line import build_parser
from kb_cli.documents import collection_and_tags, labels
from kb_cli.output import CliError, Exit
from kb_contracts.access.key_file import KeyFile, rights_of
from kb_contracts.api.ragler import collection_id
from kb_load.processes import clean_environment
from kb_server.collection_tags import tags_for_search, tags_for_submission
from kb_simulator import SimulatorSettings, in_thread
from tests.support import engines
from tests.support.patience import JOB_SECONDS, SILENCE, START_SECONDS
from tests.unit.cli.conftest import KEY, Kb, RunningEngine

HOSTILE = "a note with \x1b]0;owned\x07 and \x9b31m in it"


def at_terminal(engine: RunningEngine, *arguments: str, typed: bytes = b"") -> tuple[int, str]:
    """Run `kb` at a terminal; return the exit status and all output to the terminal."""
    controller, terminal = pty.openpty()
    environment = clean_environment(
        KB_ENGINE_URL=engine.url, KB_API_KEY=engine.key, TERM="xterm-256color", COLUMNS="200"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "kb_cli.main", *arguments],
        stdin=terminal, stdout=terminal, stderr=terminal, env=environment,
    )  # fmt: skip
    os.close(terminal)
    os.write(controller, typed)
    received = b"".join(iter(lambda: _read(controller), b""))
    os.close(controller)
    return process.wait(START_SECONDS), received.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux reports a closed other side of a terminal this way
        return b""


@pytest.mark.requirement("E21")
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("addnote", " "), Exit.USAGE, "a note "),
        (("addnote", "x" * 1_000_001), Exit.USAGE, "a note "),
        (("updatenote", "1", ""), Exit.USAGE, "a note "),
        (("updatenote", "999999", "text"), Exit.NOT_FOUND, "document"),
        (("search", ""), Exit.USAGE, "words or a question"),
        (("search", "  \u2003"), Exit.USAGE, "words or a question"),
        (("search", "words", "--mode", "vector", "--fts-only"), Exit.USAGE, "exclude each other"),
        (("get", "1", "--source-path", "x"), Exit.USAGE, "not both"),
        (("get", "1", "--collection", "shelf"), Exit.USAGE, "not both"),
        (("get", "abc"), Exit.USAGE, "its number or its uid"),
        (("get", "99999999999999999999"), Exit.USAGE, "its number or its uid"),
        (("get", "{document}", "--original", "x"), Exit.FAILED, "see it with kb get "),
        (("jobs", "123"), Exit.USAGE, "its UUID"),
        (("jobs", "--retry"), Exit.USAGE, "ID"),
        (("move", "999999", "memory"), Exit.NOT_FOUND, "999999"),
        (("move", "{document}", "No Name"), Exit.USAGE, "collection"),
    ],
)
def test_an_invalid_argument_is_one_line_of_error_and_changes_nothing(
    kb: Kb, arguments: tuple[str, ...], status: Exit, words: str
) -> None:
    document = kb.note("anything")
    before = kb.json("get")
    ended, out, error = kb(*(each.format(document=document) for each in arguments))
    assert (ended, out, error.count("\n")) == (status, "", 1)
    assert error.startswith(f"kb {arguments[0]}: ")
    assert words in error
    assert "regex" not in error
    assert kb.json("get") == before


# --- notes ----------------------------------------------------------------------------------------


@pytest.mark.requirement("E15")
def test_a_note_is_found_in_the_collection_that_its_tag_names(kb: Kb) -> None:
    document = kb.note("User prefers heliotrope ink", "--tags", "collection:memory,style")
    assert kb.tags(document) == ["collection:memory", "style"]
    found = kb.json("search", "heliotrope", "--tags", "collection:memory")
    assert [result["document"]["id"] for result in found["results"]] == [document]
    assert kb.json("search", "heliotrope", "--collection", "workspace")["results"] == []


def test_the_same_note_twice_is_one_document(kb: Kb) -> None:
    """Also with its words as several arguments."""
    document = kb.note("The archive closes at noon")
    status, out, _ = kb("addnote", "The", "archive", "closes at noon")
    assert (status, out) == (0, f"Document {document} in documents; the same text was there already.\n")


def test_a_replaced_text_that_stays_is_reported(kb: Kb, tmp_path: Path) -> None:
    """`kb add` reports it too."""
    kb("addnote", "Lights out at ten", "--source-path", "house/lights")
    kb("addnote", "Lights out at ten")
    _, out, _ = kb("addnote", "Lights out at eleven", "--source-path", "house/lights")
    assert "stays as a document, for it was also added in another way" in out
    _, out, _ = kb("addnote", "Lights out at twelve", "--source-path", "house/lights")
    assert out.endswith("the earlier document of its source is replaced.\n")
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text("Doors close at nine")
        kb("add", name)
    (tmp_path / "one.txt").write_text("Doors close at eight")
    assert "stays as a document" in kb("add", "one.txt")[1]


def test_a_note_may_come_from_stdin(kb: Kb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
    document = kb.note("-", "--title", "Piped", "--source-path", "memory/piped.md")
    found = kb.json("get", "--source-path", "memory/piped.md")
    assert [(entry["id"], entry["title"]) for entry in found["documents"]] == [(document, "Piped")]


def test_without_waiting_the_job_is_told(kb: Kb) -> None:
    job = kb.json("addnote", "not waited for", "--no-wait")
    assert job["kind"] == "note"
    assert kb.json("jobs", job["id"])["id"] == job["id"]


@pytest.mark.requirement("E21")
def test_updatenote_replaces_the_text_in_place(kb: Kb) -> None:
    document = kb.note("The committee meets on Monday")
    before = kb.json("get", str(document))
    status, out, _ = kb("updatenote", str(document), "The committee meets on Thursday")
    assert (status, out) == (0, f"Note {document} is updated (version 2).\n")
    again = kb("updatenote", str(document), "The committee meets on Thursday")
    assert again[:2] == (0, f"Note {document} has this text already (version 2).\n")
    after = kb.json("get", str(document))
    assert (after["id"], after["created_at"]) == (before["id"], before["created_at"])
    assert after["chunks"][0]["text"] == "The committee meets on Thursday"


@pytest.mark.process
def test_updatenote_waits_for_what_takes_longer_than_a_request(kb: Kb) -> None:
    with in_thread(SimulatorSettings(port=0, jobs="seconds:90")) as slow:
        document = kb.json("addnote", "granite", "--url", slow.url)["document_id"]
        update = ("updatenote", str(document), "basalt", "--url", slow.url)
        assert kb(*update)[:2] == (0, f"Note {document} is updated (version 2).\n")
        status, out, _ = kb(*update, "--no-wait")
        job = kb.json("jobs", "--url", slow.url)["jobs"][0]
        assert (status, out) == (0, f"Job {job['id']} is running.\n")
        assert (job["kind"], job["document_id"]) == ("update", document)


@pytest.mark.requirement("E21")
def test_updatenote_of_a_file_ends_with_1(kb: Kb, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("a file and not a note")
    [result] = kb.json("add", "file.txt")
    status, _, err = kb("updatenote", str(result["document_id"]), "text")
    assert status == Exit.FAILED
    assert "note" in err


def test_updatenote_waits_for_a_silent_engine_once(kb: Kb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_TIMEOUT", SILENCE)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        status, _, err = kb("updatenote", "1", "text", "--url", url)
        assert (status, f"no engine answers at {url}" in err) == (Exit.UNREACHABLE, True)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_updatenote_at_another_version_is_refused(kb: Kb) -> None:
    """`--expected-version` prevents overwriting another person's change."""
    document = kb.note("A sentence that two people edit")
    assert kb("updatenote", str(document), "Mine", "--expected-version", "7")[0] == Exit.FAILED
    assert kb("updatenote", str(document), "Mine", "--expected-version", "1")[0] == Exit.OK


# --- search and documents -------------------------------------------------------------------------


def test_search_shows_score_title_place_and_text(kb: Kb) -> None:
    document = kb.note("The zeppelin hangar has a copper roof", "--title", "Hangar", "--tags", "roof")
    status, out, _ = kb("search", "zeppelin", "hangar", "--mode", "fts", "--explain")
    assert status == 0
    assert f"Hangar · document {document} · in documents · roof" in out
    assert "The zeppelin hangar has a copper roof" in out
    assert "Found because the text has “zeppelin”, “hangar” and title or headings have “hangar”." in out
    assert "\x1b" not in out


def test_a_long_passage_is_shortened_for_people_and_says_so(kb: Kb) -> None:
    kb.note("vermilion " * 90)
    _, short, _ = kb("search", "vermilion", "--top", "1", "--fts-only")
    _, full, _ = kb("search", "vermilion", "--top", "1", "--fts-only", "--full")
    assert "… (--full shows all)" in short
    assert "--full" not in full
    assert full.count("vermilion") > short.count("vermilion")


def test_distant_hits_are_counted_and_printed_with_full(kb: Kb) -> None:
    kb.note("Obsidian schist gneiss marl. Glass of volcanoes.")
    kb.note("Clay and marl lie in the pit. " + "Sand. " * 20)
    status, out, err = kb("search", "obsidian schist gneiss marl", "--fts-only")
    assert (status, "Glass" in out, "Clay" in out) == (0, True, False)
    assert err == "1 more result with less than half of the best score; --full shows all.\n"
    assert "Clay" in kb("search", "obsidian schist gneiss marl", "--fts-only", "--full")[1]


def test_a_search_without_results_says_so_beside_the_answer(kb: Kb) -> None:
    """stdout stays empty for scripts; an empty result is no failure."""
    assert kb("search", "xyzzyplugh", "--fts-only") == (0, "", "Nothing found.\n")


def test_a_query_may_begin_with_what_it_leaves_out(kb: Kb) -> None:
    """An argument with a space is not an option."""
    kb.note("a saxifrage and moss")
    kb.note("saxifrage alone")
    status, out, _ = kb("search", "-moss saxifrage", "--fts-only")
    assert status == 0
    assert "saxifrage alone" in out
    assert "moss" not in out


def test_get_shows_the_facts_and_the_text(kb: Kb) -> None:
    document = kb.note("Line one\nLine two", "--title", "Two lines", "--collection", "workspace")
    status, out, _ = kb("get", str(document))
    assert status == 0
    assert {f"document\t{document}", "title\tTwo lines", "collection\tworkspace"} <= set(out.splitlines())
    assert out.endswith("\nLine one\nLine two\n")


def test_get_of_nothing_in_particular_lists_the_documents(kb: Kb) -> None:
    """The newest first, so that a new document is found without a search."""
    older, newer = kb.note("older"), kb.note("newer")
    assert [document["id"] for document in kb.json("get")["documents"]][:2] == [newer, older]


def test_get_lists_by_collection_tags_and_source(kb: Kb) -> None:
    wanted = kb.note("one", "--collection", "shelf", "--tags", "stone,red", "--source-path", "a.md")
    kb.note("two", "--collection", "shelf", "--tags", "stone", "--source-path", "b.md")
    kb.note("three", "--collection", "drawer", "--tags", "stone,red", "--source-path", "a.md")

    def listed(*arguments: str) -> list[int]:
        return [document["id"] for document in kb.json("get", *arguments)["documents"]]

    assert len(listed("--collection", "shelf")) == 2
    assert listed("--collection", "shelf", "--tags", "stone,red") == [wanted]
    assert listed("--collection", "shelf", "--source-path", "a.md") == [wanted]
    assert listed("--collection", "shelf", "--tags", "none") == []


def test_get_pages_the_list_and_says_how_to_go_on(kb: Kb) -> None:
    ids = [kb.note(f"page {number}", "--collection", "paged") for number in range(3)]
    pages = [
        kb.json("get", "--collection", "paged", "--limit", "2", "--offset", offset) for offset in ("0", "2")
    ]
    assert [document["id"] for page in pages for document in page["documents"]] == ids[::-1]
    _, _, err = kb("get", "--collection", "paged", "--limit", "2")
    assert "2 of 3 documents" in err
    assert "--offset 2" in err
    assert "--offset" not in kb("get", "--collection", "paged", "--limit", "2", "--offset", "2")[2]


def test_a_search_that_finds_nothing_near_says_that_it_is_weak(kb: Kb) -> None:
    kb.note("The ledger is bound in calf", "--collection", "ledgers")
    _, out, _ = kb("search", "zzz qqq", "--collection", "ledgers")
    assert out.startswith("weak: nothing matches well")
    _, out, _ = kb("search", "the ledger is bound in calf", "--collection", "ledgers")
    assert "weak" not in out


def test_get_of_a_long_document_says_how_to_go_on(kb: Kb, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text(
        "\n\n".join(f"Paragraph {number}. " + "word " * 150 for number in range(8))
    )
    [result] = kb.json("add", "long.txt")
    _, _, err = kb("get", str(result["document_id"]), "--limit", "2")
    assert "continue with --offset 2" in err


def test_move_leaves_a_document_in_exactly_one_collection(kb: Kb) -> None:
    document = kb.note("The ledger is bound in calf", "--tags", "book")
    status, out, _ = kb("move", str(document), "memory")
    assert (status, out) == (0, f"Document {document} is in memory.\n")
    assert sorted(kb.tags(document)) == ["book", "collection:memory"]


def test_tags_are_added_and_removed(kb: Kb) -> None:
    document = str(kb.note("The cellar is damp", "--tags", "house,hold"))
    status, out, err = kb("tag", document, "+damp", "-hold", "-none")
    assert (status, out) == (0, f"Tags of document {document}: house, damp\n")
    assert err == f"Document {document} does not have the tag none.\n"
    assert "kb get --tags TAG" in kb("tag")[2]
    assert "one document" in kb("tag", document, "13", "+damp")[2]
    for change in ("damp", "--json", "+collection:x", "+a/b"):
        assert kb("tag", document, change)[0] == Exit.USAGE
    assert "both added and removed" in kb("tag", document, "+damp", "-damp")[2]
    assert kb("tag", document, "+-draft")[1] == f"Tags of document {document}: house, damp, -draft\n"
    assert kb("tag", document, "--", "--draft")[1] == f"Tags of document {document}: house, damp\n"
    assert kb("tag", "999999", "+damp")[0] == Exit.NOT_FOUND
    assert sorted(kb.tags(int(document))) == ["collection:documents", "damp", "house"]


def test_a_key_for_an_absent_collection_is_created_with_a_note(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KB_KEYS", str(tmp_path / "keys.json"))
    kb.note("Granite is cut", "--collection", "quarries")
    err = kb("keys", "create", "ci", "--collection", "quarries,memory,quarry")[2]
    said = "there is no collection 'quarry'; did you mean quarries?; the key reaches it once it exists"
    assert [line for line in err.splitlines() if "collection '" in line] == [said]
    monkeypatch.setenv("KB_ENGINE_CA", str(tmp_path / "absent.pem"))
    assert kb("keys", "create", "other", "--collection", "quarry")[0] == 0
    monkeypatch.delenv("KB_ENGINE_CA")
    monkeypatch.setattr(client, "OPTIONAL_SECONDS", SILENCE)
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:

        def until_left() -> bytes:
            asked, _ = silent.accept()
            with asked:
                asked.settimeout(JOB_SECONDS)
                return b"".join(iter(lambda: asked.recv(1024), b""))

        left = pool.submit(until_left)
        monkeypatch.setenv("KB_ENGINE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert kb("keys", "create", "third", "--collection", "quarry")[0] == 0
        assert left.result()


def test_a_new_collection_and_an_empty_list_are_noted(kb: Kb) -> None:
    said = "the collection 'memroy' has no documents yet; did you mean memory?\n"
    assert [kb("addnote", "Granite is cut", "--collection", "memroy")[2] for _ in range(2)] == [said, ""]
    assert kb("get", "--tags", "nosuch") == (Exit.OK, "", "No document found.\n")
    assert kb("get", "--collection", "memroy", "--offset", "7")[2] == "No document from offset 7 on.\n"


def test_rm_asks_only_at_a_terminal(kb: Kb) -> None:
    """A script must pass `--yes`; otherwise nothing is removed."""
    document = kb.note("To be removed")
    assert kb("rm", str(document))[0] == Exit.USAGE
    assert kb("rm", str(document), "--yes")[:2] == (0, "Removed 1 document with 1 passage.\n")
    assert kb("get", str(document))[0] == Exit.NOT_FOUND


def test_rm_of_several_goes_on_after_one_that_is_missing(kb: Kb) -> None:
    """A partial failure has its own exit status; if nothing was removed, the status is "not found"."""
    document = kb.note("One of two")
    status, out, err = kb("rm", "999999", str(document), "--yes")
    assert (status, out) == (Exit.PARTLY, "Removed 1 document with 1 passage.\n")
    assert "999999" in err
    status, _, err = kb("rm", "999999", "--yes")
    assert (status, err.count("\n")) == (Exit.NOT_FOUND, 1)


@pytest.mark.parametrize("further", [(), ("--json",)])
def test_rm_that_stops_names_the_reason_and_what_is_left(kb: Kb, further: tuple[str, ...]) -> None:
    first, last = kb.note("Removed before the failure"), kb.note("Not tried after it")
    status, out, err = kb("rm", str(first), "abc", str(last), "--yes", *further)
    assert (status, bool(out)) == (Exit.PARTLY, True)
    assert err.splitlines()[0].endswith("number or its uid; `kb get` lists them")
    assert err.splitlines()[1] == f"kb rm: stopped here; not removed: {last}"
    kb("rm", str(last), "--yes")


@pytest.mark.process
@pytest.mark.parametrize(("typed", "left"), [(b"n\n", True), (b"y\n", False)])
def test_rm_at_a_terminal_asks_with_the_title(
    kb: Kb, engine: RunningEngine, typed: bytes, left: bool
) -> None:
    document = kb.note(f"Asked about {typed!r}", "--title", "A title to see")
    status, shown = at_terminal(engine, "rm", str(document), typed=typed)
    assert status == 0
    assert "A title to see" in shown
    assert (kb("get", str(document))[0] == 0) is left


# --- state ----------------------------------------------------------------------------------------


def test_status_tells_what_the_engine_tells(kb: Kb) -> None:
    _, out, _ = kb("status")
    assert "engine\tv3.0.0" in out.splitlines()
    assert kb.json("status")["version"] == "v3.0.0"


def test_jobs_are_listed_and_filtered(kb: Kb) -> None:
    document = kb.note("A job to list")
    header, first, *_ = kb("jobs", "--limit", "1")[1].splitlines()
    assert header.split("\t") == ["job", "file", "status", "step", "title", "document", "created"]
    assert first.split("\t")[1:3] == ["", "completed"]
    assert first.split("\t")[5] == str(document)
    assert kb.json("jobs", "--status", "cancelled")["jobs"] == []


def test_a_failed_job_is_tried_again(kb: Kb, tmp_path: Path) -> None:
    (tmp_path / "broken.txt").write_bytes(b"\xff\xff\xff")
    kb("add", str(tmp_path / "broken.txt"))
    (failed,) = kb.json("jobs", "--status", "failed", "--limit", "1")["jobs"]
    assert f"{failed['id']}\tbroken.txt\tfailed" in kb("jobs", "--status", "failed")[1]
    assert kb.json("jobs", failed["id"], "--retry")["status"] == "queued"
    kb.note("A job that is done")
    (done,) = kb.json("jobs", "--status", "completed", "--limit", "1")["jobs"]
    status, _, err = kb("jobs", done["id"], "--retry")
    assert (status, "cannot be retried" in err) == (Exit.FAILED, True)


def test_a_wrong_key_is_told_without_showing_it(kb: Kb) -> None:
    status, _, err = kb("status", "--api-key", "not-the-key")
    assert status == Exit.FAILED
    assert "KB_API_KEY" in err
    assert "not-the-key" not in err


def test_figures_that_a_key_may_not_see_are_omitted_from_the_status(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = KeyFile(tmp_path / "home" / "keys.json").create("reader", rights=rights_of(["read"]))[1]
    with engines.engine(tmp_path / "home", api_key=KEY) as url:
        monkeypatch.setenv("KB_ENGINE_URL", url)
        whole, narrowed = kb("status")[1], kb("status", "--api-key", token)[1]
        monkeypatch.setenv("KB_API_KEY", token)
        findings = kb("doctor", "--json")[1]
    assert all(word in whole for word in ("MiB free", "kept of failed", "sandbox"))
    assert ("withheld" in narrowed, "MiB" in narrowed, "sandbox" in narrowed) == (True, False, False)
    assert "storage" not in {each["about"] for each in json.loads(findings)}


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two documents, a duplicate, two unknown formats, a hidden file, and a link to the parent folder."""
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.md").write_text("# Alpha\n\nThe first document of the folder.")
    (folder / "deep" / "b.txt").write_text("The second document of the folder.")
    (folder / "deep" / "c.txt").write_text("The second document of the folder.")
    (folder / "picture.xyz").write_bytes(os.urandom(2_000_000))
    (folder / "another.xyz").write_bytes(b"?")
    (folder / ".hidden.txt").write_text("not to be taken in")
    (folder / "deep" / "up").symlink_to(folder)
    return folder


def outcomes(results: list[dict[str, Any]]) -> dict[str, str]:
    return {Path(result["path"]).name: result["outcome"] for result in results}


def test_a_file_that_has_changed_is_replaced(kb: Kb, folder: Path) -> None:
    before = kb.json("add", "docs/a.md")
    (folder / "a.md").write_text("zircon and feldspar")
    after = kb.json("add", "docs/a.md")
    assert (outcomes(before), outcomes(after)) == ({"a.md": "added"}, {"a.md": "replaced"})
    assert before[0]["document_id"] == after[0]["document_id"]


def test_a_folder_is_taken_in_with_all_below_it(kb: Kb, folder: Path) -> None:
    results = kb.json("add", "docs", "--collection", "workspace", "--tags", "report")
    found = outcomes(results)
    # The texts of these two are equal, and either may arrive first.
    assert {found.pop("b.txt"), found.pop("c.txt")} == {"added", "already there"}
    assert found == {"a.md": "added", "another.xyz": "skipped", "picture.xyz": "skipped"}
    added = next(result for result in results if result["path"].endswith("b.txt"))
    document = kb.json("get", str(added["document_id"]))
    assert document["tags"] == ["collection:workspace", "report"]
    assert set(document["source_paths"]) == {str(folder / "deep" / name) for name in ("b.txt", "c.txt")}


def test_into_a_pipe_each_file_is_a_line(kb: Kb, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("Exactly one file for the pipe")
    for name in ("in.xyz", "in.txt"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"\xff")
    status, out, _ = kb("add", "one.txt", "in")
    *lines, total = out.splitlines()
    assert status == Exit.PARTLY
    assert sorted(tuple(line.split("\t")[:2]) for line in lines) == [
        ("added", "one.txt"), ("failed", "in/in.txt"), ("skipped", "in/in.xyz"),
    ]  # fmt: skip
    assert total == "1 added, 1 failed, 1 skipped"


def test_a_file_of_no_known_kind_that_was_named_is_a_failure(kb: Kb, tmp_path: Path) -> None:
    (tmp_path / "tool.xyz").write_bytes(b"?")
    (tmp_path / "fine.txt").write_text("A fine file beside it")
    assert kb("add", "tool.xyz")[0] == Exit.FAILED
    assert kb("add", "tool.xyz", "fine.txt")[0] == Exit.PARTLY


def test_a_damaged_file_fails_alone(kb: Kb, tmp_path: Path) -> None:
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7 not really")
    (tmp_path / "whole.txt").write_text("The whole one of the two")
    status, out, _ = kb("add", "broken.pdf", "whole.txt", "--json")
    results = json.loads(out)
    assert status == Exit.PARTLY
    assert outcomes(results) == {"broken.pdf": "failed", "whole.txt": "added"}
    assert next(result for result in results if result["outcome"] == "failed")["reason"]


def test_a_url_of_no_host_fails_alone(kb: Kb, tmp_path: Path) -> None:
    (tmp_path / "first.md").write_text("The first of two notes about granite")
    (tmp_path / "second.md").write_text("The second of two notes about basalt")
    status, out, _ = kb("add", "first.md", "http://xn--/", "second.md", "--json")
    assert status == Exit.PARTLY
    assert outcomes(json.loads(out)) == {"first.md": "added", "second.md": "added", "xn--": "failed"}


def test_a_file_without_text_does_not_read_as_success(kb: Kb, tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text(" \n\n ")
    status, out, _ = kb("add", "blank.txt", "--json")
    [result] = json.loads(out)
    assert status == Exit.FAILED
    assert result["outcome"] in ("empty", "failed")
    assert result["reason"]


def test_a_missing_file_is_refused_before_the_first_file_is_sent(kb: Kb, tmp_path: Path) -> None:
    """A typing error in the last path must not leave half of a run behind."""
    (tmp_path / "present.txt").write_text("This one is present")
    status, out, err = kb("add", "present.txt", "absent.txt")
    assert (status, out) == (Exit.USAGE, "")
    assert "absent.txt" in err
    assert kb.json("search", "present", "--fts-only")["results"] == []


def test_files_that_are_not_waited_for_are_submitted(kb: Kb, tmp_path: Path) -> None:
    (tmp_path / "later.txt").write_text("Read it later")
    [result] = kb.json("add", "later.txt", "--no-wait")
    assert result["outcome"] == "submitted"
    assert kb.json("jobs", result["job_id"])["filename"] == "later.txt"


# --- terminals ------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize(
    "command",
    [("search", "owned"), ("get", "--source-path", "hostile"), ("jobs",), ("search", "owned", "--json")],
)
def test_control_characters_of_documents_do_not_reach_the_terminal(
    kb: Kb, engine: RunningEngine, command: tuple[str, ...]
) -> None:
    kb.note(HOSTILE, "--title", HOSTILE, "--source-path", "hostile")
    status, shown = at_terminal(engine, *command)
    assert status == 0
    assert "owned" in shown
    assert "\x1b]0;" not in shown
    assert "\x07" not in shown
    assert "\x9b" not in shown


@pytest.mark.process
def test_at_a_terminal_there_is_colour_and_progress(engine: RunningEngine, tmp_path: Path) -> None:
    (tmp_path / "seen.txt").write_text("A file that somebody watches")
    status, shown = at_terminal(engine, "add", str(tmp_path / "seen.txt"))
    assert status == 0
    assert "\x1b[32m" in shown
    assert "seen.txt" in shown
    assert "1 added" in shown.splitlines()[-1]


def test_every_answer_is_one_json_document_on_request(kb: Kb, tmp_path: Path) -> None:
    """stdout has nothing more, and stderr stays empty."""
    (tmp_path / "j.txt").write_text("One for JSON")
    document = str(kb.note("A note for JSON"))
    for arguments in (
        ("status",),
        ("jobs",),
        ("search", "note"),
        ("get", document),
        ("updatenote", document, "Another note for JSON"),
        ("move", document, "memory"),
        ("add", "j.txt"),
        ("config",),
        ("rm", document, "--yes"),
    ):
        assert kb.json(*arguments) is not None


def test_collections_are_listed_and_shown(kb: Kb) -> None:
    kb.note("granite quarry", "--collection", "stones")
    (listed,) = [each for each in kb.json("collections")["collections"] if each["name"] == "stones"]
    assert (listed["chunk_count"], listed["id"]) == (1, collection_id("stones"))
    shown = kb.json("collections", "stones")
    assert kb.json("collections", listed["id"]) == shown
    assert shown["statistics"]["total_tokens"] > 0
    status, out, _ = kb("collections", "stones")
    assert status == Exit.OK
    assert dict(line.split("\t") for line in out.splitlines())["passages"] == "1"


def test_a_description_is_said_bit_by_bit(kb: Kb) -> None:
    """Omitted members stay unchanged; describing an unused name creates its collection."""
    first = kb.json(
        "collections", "Field notes", "--describe", "From outside", "--created-by", "ann@example.com"
    )
    assert (first["id"], first["created_by"]) == (collection_id("Field notes"), "ann@example.com")
    second = kb.json("collections", "Field notes", "--audience", "walkers", "--audience", "climbers")
    assert (second["description"], second["target_audience"]) == ("From outside", ["walkers", "climbers"])
    third = kb.json("collections", first["id"], "--scenario", "rain")
    assert (third["target_audience"], third["usage_scenarios"]) == (["walkers", "climbers"], ["rain"])
    assert third["created_by"] == "ann@example.com"
    _, out, _ = kb("collections", "Field notes")
    assert "walkers; climbers" in out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("nothing",), Exit.NOT_FOUND, "nothing"),
        (("--describe", "x"), Exit.USAGE, "name the collection"),
        (("stones", "--created-by", "ann"), Exit.USAGE, "created_by"),
        (("a/b", "--describe", "x"), Exit.USAGE, "name"),
    ],
)
def test_a_description_that_does_not_fit_is_one_line(
    kb: Kb, arguments: tuple[str, ...], status: Exit, words: str
) -> None:
    before = kb.json("collections")
    ended, out, error = kb("collections", *arguments)
    assert (ended, out, error.count("\n")) == (status, "", 1)
    assert words in error
    assert kb.json("collections") == before


def parsed(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["addnote", "text", *arguments])


@pytest.mark.requirement("E15")
@pytest.mark.parametrize(
    ("arguments", "place", "expected"),
    [
        (("--tags", "collection:memory,style"), tags_for_submission, ["collection:memory", "style"]),
        (
            ("--tags", "collection:memory", "--tags", "style"),
            tags_for_submission,
            ["collection:memory", "style"],
        ),
        (("--collection", "memory", "--tags", "style"), tags_for_submission, ["collection:memory", "style"]),
        (
            ("--collection", "memory", "--tags", " collection:memory , style "),
            tags_for_submission,
            ["collection:memory", "style"],
        ),
        (("--tags", "style"), tags_for_submission, ["collection:documents", "style"]),
        (("--tags", "style"), tags_for_search, ["style"]),
        (("--tags", "style,collection:memory"), tags_for_search, ["style", "collection:memory"]),
    ],
)
def test_a_collection_is_named_or_written_as_its_tag_and_what_is_new_goes_to_documents(
    arguments: tuple[str, ...], place: Callable[[str | None, Sequence[str]], list[str]], expected: list[str]
) -> None:
    assert labels(parsed(*arguments), place) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        # Membership is exclusive, so the command does not choose.
        (("--collection", "memory", "--tags", "collection:workspace"), "memory and workspace"),
        (("--collection", "Not A Name"), "collection"),
        (("--collection", ""), "collection"),
        (("--tags", "a/b"), "tag"),
    ],
)
def test_labels_that_do_not_fit_are_refused_before_anything_is_sent(
    arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(CliError, match=words) as refused:
        labels(parsed(*arguments), tags_for_submission)
    assert refused.value.status is Exit.USAGE


def test_tags_are_shown_with_the_collection_apart() -> None:
    assert collection_and_tags(["collection:memory", "a", "b"]) == ("memory", "a, b")
    assert collection_and_tags(["a"]) == ("", "a")
