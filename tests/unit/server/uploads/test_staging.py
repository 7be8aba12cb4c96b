"""The staging folder: ownership, clearing, and dead processes, which block nothing."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kb_server.uploads.staging import Entry, Ledger, Lock, Staging, hash_token, remove_dead
from kb_server.uploads.upload import State, Upload, UploadError
from tests.support.eventually import eventually
from tests.support.patience import ANSWER_SECONDS
from tests.support.uploads import upload

ID = "8b4e8f0e-9d1c-4c53-9c1a-5f2f6f0c9d11"
HOLDER = """
import sys
from pathlib import Path
from kb_server.uploads.staging import Lock
lock = Lock()
lock.acquire(Path(sys.argv[1]), shared=sys.argv[2] == "shared")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another_process(path: Path, how: str = "exclusive") -> Iterator[subprocess.Popen[str]]:
    """A process that holds a lock on `path` until the end, or until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Staging]:
    staging = Staging(tmp_path / "staging", "one")
    staging.open()
    yield staging
    staging.close()


def add(staging: Staging, token: str = "token") -> Upload:
    added = upload(id=ID, token_sha256=hash_token(token))
    staging.create(added, lambda _ledger: None)
    return added


def test_the_folder_is_its_owners_alone(staging: Staging) -> None:
    add(staging)
    for folder in (staging.root, staging.folder, staging.folder / ID):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((staging.folder / ID / "upload.json").stat().st_mode) == 0o600


def test_a_running_servers_folder_is_left_alone(staging: Staging) -> None:
    add(staging)
    assert remove_dead(staging.root) == []
    assert staging.ids() == [ID]


def test_a_dead_servers_folder_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "staging"
    dead = root / "dead"
    dead.mkdir(parents=True)
    (dead / "left.bin").write_bytes(b"x")
    with held_by_another_process(dead / ".alive", "shared") as process:
        assert remove_dead(root) == []
        process.kill()
        process.wait()
        assert remove_dead(root) == ["dead"]
    assert list(root.iterdir()) == []


def test_without_a_staging_folder_there_is_nothing_to_remove(tmp_path: Path) -> None:
    assert remove_dead(tmp_path / "missing") == []


def test_waiting_for_the_lock_finds_an_upload_finished_meanwhile(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(staging)
    held, found = threading.Event(), []
    acquire = Lock.acquire
    tried: list[Path] = []

    def noted(lock: Lock, path: Path, *, shared: bool = False, wait: bool = True) -> bool:
        if path.name != ".lock":
            return acquire(lock, path, shared=shared, wait=wait)
        # Opened before it is locked, as `acquire` does: the folder moves between the two.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        tried.append(path)
        if len(tried) == 2:
            first.join(ANSWER_SECONDS)
        os.close(descriptor)
        return acquire(lock, path if path.exists() else staging.folder / "done" / ID / ".lock", shared=shared)

    def retires(entry: Entry) -> None:
        held.set()
        eventually(lambda: len(tried) == 2)
        staging.retire(entry)

    monkeypatch.setattr(Lock, "acquire", noted)
    first = threading.Thread(target=staging.with_entry, args=(ID, retires))
    first.start()
    held.wait(ANSWER_SECONDS)
    second = threading.Thread(target=lambda: found.append(staging.with_entry(ID, Entry.read).id))
    second.start()
    second.join(ANSWER_SECONDS)
    assert found == [ID]
    assert len(tried) == 3, "it looked where the upload had been, and then where it is"
    assert staging.ids() == [ID]
    seen = staging.peek(ID)
    assert seen is not None
    assert seen.id == ID


def test_a_folder_half_removed_by_another_server_is_whole_when_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files created before the lock may be removed; files created afterwards are kept."""
    staging = Staging(tmp_path, "one")
    acquire = Lock.acquire

    def emptied_first(lock: Lock, path: Path, *, shared: bool = False, wait: bool = True) -> bool:
        for inside in staging.folder.iterdir():
            shutil.rmtree(inside) if inside.is_dir() else inside.unlink()
        return acquire(lock, path, shared=shared, wait=wait)

    with monkeypatch.context() as patched:
        patched.setattr(Lock, "acquire", emptied_first)
        staging.open()
    assert staging.ids() == []
    add(staging)
    staging.with_entry(ID, staging.retire)
    assert staging.ids() == [ID]
    staging.close()


def test_waiting_for_the_lock_of_a_removed_upload_leaves_no_files(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes the lock file, which would never be removed."""
    added = add(staging)
    rmtree = shutil.rmtree

    def with_a_waiter(folder: Path, **how: Any) -> None:
        with pytest.raises(UploadError, match="not found"):
            staging.with_entry(ID, lambda _entry: pytest.fail("it was opened"))
        rmtree(folder, **how)

    monkeypatch.setattr(shutil, "rmtree", with_a_waiter)
    staging.with_entry(ID, lambda entry: staging.remove(entry, added))
    assert staging.ids() == []
    assert [path.name for path in staging.folder.iterdir() if ID in path.name] == []


def test_workers_share_a_folder_and_the_last_removes_it(tmp_path: Path) -> None:
    first, second = Staging(tmp_path, "shared"), Staging(tmp_path, "shared")
    first.open()
    second.open()
    add(first)
    first.close()
    assert second.ids() == [ID]
    second.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_folder_removed_while_it_was_opened_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The folder is removed before its lock file exists, or between opening and locking it."""
    staging = Staging(tmp_path, "one")
    acquire = Lock.acquire

    def interfered(lock: Lock, path: Path, *, shared: bool = False, wait: bool = True) -> bool:
        monkeypatch.setattr(Lock, "acquire", acquire)
        if when == "before":
            assert remove_dead(tmp_path) == ["one"]
        taken = acquire(lock, path, shared=shared, wait=wait)
        if when == "after":
            shutil.rmtree(path.parent)
        return taken

    monkeypatch.setattr(Lock, "acquire", interfered)
    staging.open()
    assert remove_dead(tmp_path) == []
    assert (staging.folder / ".alive").exists()
    staging.close()


def test_a_finisher_that_dies_leaves_an_open_upload(staging: Staging) -> None:
    """The finishing state is a lock, because a state on disk would outlive the process."""
    added = add(staging)
    entry = Entry(staging.folder / ID)
    with held_by_another_process(entry.folder / ".finishing") as process:
        assert entry.state(added) is State.FINISHING
        process.kill()
        process.wait()
        assert entry.state(added) is State.OPEN


def test_looking_at_the_state_leaves_no_lock(staging: Staging) -> None:
    added = add(staging)
    entry = Entry(staging.folder / ID)
    lock = Lock()
    assert entry.hold_finishing(lock)
    lock.release()
    assert [entry.state(added), entry.state(added)] == [State.OPEN, State.OPEN]
    assert entry.hold_finishing(lock)
    lock.release()


@pytest.mark.parametrize("upload_id", ["", "..", "../one", ".", ID.upper(), ID + "/..", "x" * 5_000, "\x00"])
def test_an_invalid_upload_id_is_never_used_as_a_path(staging: Staging, upload_id: str) -> None:
    with pytest.raises(UploadError) as refused:
        staging.with_entry(upload_id, lambda _entry: pytest.fail("it was opened"))
    assert refused.value.code == "upload_not_found"
    assert len(refused.value.message) < 400


def test_an_upload_removed_while_one_waits_for_it_is_not_found(staging: Staging) -> None:
    added = add(staging)

    def removes_then_reads(entry: Entry) -> None:
        staging.remove(entry, added)
        entry.read()

    with pytest.raises(UploadError) as refused:
        staging.with_entry(ID, removes_then_reads)
    assert refused.value.code == "upload_not_found"
    assert not (staging.folder / f"token-{added.token_sha256}").exists()


def test_a_token_is_kept_only_as_its_hash(staging: Staging) -> None:
    add(staging, token="the-secret-token")
    content = b"".join(path.read_bytes() for path in staging.folder.rglob("*") if path.is_file())
    names = " ".join(path.name for path in staging.folder.rglob("*"))
    assert b"the-secret-token" not in content
    assert "the-secret-token" not in names
    assert staging.by_token("the-secret-token") == ID


@pytest.mark.parametrize("token", ["", "wrong", "..", "\x00", "\ud800", "x" * 10_000])
def test_an_unknown_upload_token_is_not_found(staging: Staging, token: str) -> None:
    add(staging)
    with pytest.raises(UploadError) as refused:
        staging.by_token(token)
    assert refused.value.status == 404
    assert token not in refused.value.message or not token


def test_a_refused_upload_leaves_nothing(staging: Staging) -> None:
    def refuses(_ledger: Ledger) -> None:
        raise UploadError("staging_full", "no")

    with pytest.raises(UploadError):
        staging.create(upload(), refuses)
    assert staging.ids() == []


def test_a_write_that_fails_leaves_the_old_file(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    add(staging)
    entry = Entry(staging.folder / ID)
    entry.put_chunk(0, b"old")

    def full(self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space"):
            entry.put_chunk(0, b"new")
    assert entry.content()[0].read_bytes() == b"old"
    assert [path.name for path in entry.folder.iterdir() if path.name.startswith(".")] == []
