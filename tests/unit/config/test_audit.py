"""The audit log: a hash chain that reveals changes, rotation of files, and lines that do not fit."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import msgspec
import pytest

from kb_config.audit import MAX_DOCUMENTS, AuditLog, AuditSettings
from kb_config.audit_chains import REFUSED, Wanted, chains, check, entries, heads


def _written(folder: Path, count: int = 5, **options: int) -> AuditLog:
    audit = AuditLog(folder, "engine", **options)
    for number in range(count):
        audit.write("deleteDocument", who=f"key {number}", address="127.0.0.1", documents=[f"uid {number}"])
    return audit


def _lines(folder: Path) -> list[bytes]:
    ((file,),) = chains(folder).values()
    return file.read_bytes().splitlines(keepends=True)


def _rewrite(folder: Path, lines: list[bytes]) -> None:
    ((file,),) = chains(folder).values()
    file.write_bytes(b"".join(lines))


def test_written_audit_entries_are_read_and_their_chain_verifies(tmp_path: Path) -> None:
    audit = _written(tmp_path)
    audit.write("getDocument", "document_not_found", user="ann", found=3, correlation_id="c", detail={"a": 1})
    audit.close()
    assert check(tmp_path) == []
    found = list(entries(tmp_path))
    assert [entry.number for entry in found] == list(range(1, 9))
    assert (found[1].who, found[1].documents, found[1].part) == ("key 0", ["uid 0"], "engine")
    assert (found[6].outcome, found[6].user, found[6].found, found[6].detail) == (
        "document_not_found", "ann", 3, {"a": 1},
    )  # fmt: skip
    assert [entry.action for entry in (found[0], found[-1])] == ["log opened", "log closed"]
    assert heads(tmp_path) == [audit.head]


def test_the_audit_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    _written(tmp_path / "audit")
    ((file,),) = chains(tmp_path / "audit").values()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


Tamper = Callable[[list[bytes]], list[bytes]]


@pytest.mark.parametrize(
    ("tamper", "line"),
    [
        (lambda lines: [*lines[:2], lines[2].replace(b"key 1", b"key 9"), *lines[3:]], 3),
        (lambda lines: [*lines[:2], *lines[3:]], 3),
        (lambda lines: lines[1:], 1),
        (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], 3),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4),
        (lambda lines: [*lines[:3], b"garbage\n", *lines[3:]], 4),
        (lambda lines: [*lines[:2], lines[2].replace(b"key 1", b"key \xff"), *lines[3:]], 3),
        (lambda lines: [*lines[:-1], lines[-1][:20]], 6),
        (lambda lines: [*lines[:2], lines[2].replace(b'"part"', b'"x":1,"part"'), *lines[3:]], 3),
    ],
    ids=[
        "changed",
        "taken out",
        "beginning cut",
        "swapped",
        "doubled",
        "garbage",
        "bytes",
        "torn",
        "a member more",
    ],
)
def test_a_line_that_was_touched_breaks_the_chain_there(tmp_path: Path, tamper: Tamper, line: int) -> None:
    _written(tmp_path)
    _rewrite(tmp_path, tamper(_lines(tmp_path)))
    broken = check(tmp_path)
    assert broken
    assert broken[0].number == line


def test_an_end_that_was_cut_shows_against_the_heads_that_were_kept(tmp_path: Path) -> None:
    audit = _written(tmp_path)
    known = heads(tmp_path)
    audit.write("search")
    assert check(tmp_path, known) == []
    _rewrite(tmp_path, _lines(tmp_path)[:4])
    assert check(tmp_path) == []
    (broken,) = check(tmp_path, known)
    assert (broken.number, "there were 6 lines" in broken.what) == (5, True)


def test_a_chain_that_is_written_anew_or_gone_shows_against_the_heads(tmp_path: Path) -> None:
    first = _written(tmp_path / "one")
    known = heads(tmp_path / "one")
    _written(tmp_path / "two")
    ((forged,),) = chains(tmp_path / "two").values()
    ((file,),) = chains(tmp_path / "one").values()
    file.write_bytes(forged.read_bytes())
    assert check(tmp_path / "one") == []
    (broken,) = check(tmp_path / "one", known)
    assert (broken.chain, broken.number) == (first.chain, 6)
    file.unlink()
    (missing,) = check(tmp_path / "one", known)
    assert missing.what == "all 6 lines are missing"


def test_files_follow_one_another_and_one_that_is_missing_shows(tmp_path: Path) -> None:
    audit = _written(tmp_path, 100, file_bytes=4096)
    (files,) = chains(tmp_path).values()
    assert len(files) > 3
    assert all(file.stat().st_size <= 4096 for file in files)
    assert check(tmp_path) == []
    assert len(list(entries(tmp_path))) == audit.head.number == 101
    files[1].unlink()
    assert check(tmp_path)


def test_removing_old_audit_files_is_recorded_in_the_chain(tmp_path: Path) -> None:
    old = _written(tmp_path, 100, file_bytes=4096)
    old.close()
    (files,) = chains(tmp_path).values()
    known = heads(tmp_path)
    for file in files[:-1]:
        os.utime(file, (0, 0))
    AuditLog(tmp_path, "server", days=1.0)
    assert list(chains(tmp_path)[old.chain]) == files[-1:]
    assert check(tmp_path, known) == []
    os.utime(files[-1], (0, 0))
    AuditLog(tmp_path, "server", days=1.0)
    assert old.chain not in chains(tmp_path)
    assert check(tmp_path, known) == []


def test_the_file_of_a_process_that_lives_is_never_an_old_one(tmp_path: Path) -> None:
    living = _written(tmp_path)
    ((file,),) = chains(tmp_path).values()
    os.utime(file, (0, 0))
    AuditLog(tmp_path, "server", days=1.0)
    assert living.chain in chains(tmp_path)


def test_lines_for_which_there_is_no_room_are_counted_by_the_next(tmp_path: Path) -> None:
    audit = _written(tmp_path)
    ((file,),) = chains(tmp_path).values()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 20, hard))
    try:
        audit.write("addTags")
        audit.write("addTags")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    audit.write("search")
    assert check(tmp_path) == []
    *_, last = entries(tmp_path)
    assert (last.number, last.action, last.lost) == (7, "search", 2)


def test_threads_write_one_chain(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path, "engine", file_bytes=8192)

    def write() -> None:
        for _ in range(100):
            audit.write("search")

    threads = [Thread(target=write) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert check(tmp_path) == []
    assert audit.head.number == 401


@pytest.mark.parametrize("words", ["\ud800", "a\nb", '","hash":"' + "0" * 64 + '"}', "x" * 10_000])
def test_values_chosen_by_a_caller_stay_within_one_audit_line(tmp_path: Path, words: str) -> None:
    audit = AuditLog(tmp_path, "engine")
    audit.write("getDocument", user=words, correlation_id=words, documents=["d"] * 1_000)
    audit.write("search")
    assert check(tmp_path) == []
    _, entry, _ = entries(tmp_path)
    assert len(entry.documents) == MAX_DOCUMENTS
    assert max(map(len, _lines(tmp_path))) < 2_000


def test_lines_are_found_by_what_they_say(tmp_path: Path) -> None:
    audit = _written(tmp_path)
    audit.write("addTags", "forbidden", who="key 1", documents=["uid 1"], correlation_id="c1")

    def found(**wanted: str) -> list[int]:
        return [entry.number for entry in entries(tmp_path) if Wanted(**wanted).has(entry)]

    assert found(who="key 1") == [3, 7]
    assert found(document="uid 1", outcome="ok") == [3]
    assert found(outcome=REFUSED) == found(action="addTags") == found(correlation_id="c1") == [7]
    assert found(until="2000-01-01T00:00:00Z") == []
    assert found(since="2000-01-01T00:00:00Z", who="key 0") == [2]


def test_without_the_setting_no_audit_is_written(tmp_path: Path) -> None:
    assert AuditSettings.read({}).open(tmp_path, "engine") is None
    assert not list(tmp_path.iterdir())
    wanted = AuditSettings.read({"KB_AUDIT": "true", "KB_AUDIT_FOLDER": str(tmp_path / "elsewhere")})
    audit = wanted.open(tmp_path, "engine")
    assert audit is not None
    assert heads(tmp_path / "elsewhere") == [audit.head]
    assert msgspec.json.decode(msgspec.json.encode(audit.head), type=type(audit.head)) == audit.head
