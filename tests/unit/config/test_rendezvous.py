"""Discovery of a running engine: valid while it runs, and removed afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kb_config.rendezvous import Rendezvous
from tests.support.patience import ANSWER_SECONDS, SILENCE, START_SECONDS

URL = "http://127.0.0.1:4711"


@pytest.fixture
def place(tmp_path: Path) -> Rendezvous:
    return Rendezvous(tmp_path)


def test_an_engine_is_found_for_as_long_as_it_says_where_it_is(place: Rendezvous) -> None:
    assert place.url() is None
    lock = place.announce(URL)
    assert lock is not None
    assert (place.url(), Rendezvous(place.folder).url()) == (URL, URL)
    assert place.announce("http://127.0.0.1:1") is None
    assert place.url() == URL
    lock.release()
    assert place.url() is None


def test_a_shorter_url_leaves_nothing_of_the_one_before(place: Rendezvous) -> None:
    for url in (URL, "http://[::1]:1"):
        lock = place.announce(url)
        assert (lock is not None, place.url()) == (True, url)
        assert lock is not None
        lock.release()


def test_many_use_an_engine_and_none_while_it_ends(place: Rendezvous) -> None:
    users = [place.use(), place.use()]
    for user in users:
        assert user is not None
        assert place.claim() is None
        user.release()
    claimed = place.claim()
    assert claimed is not None
    assert place.use() is None
    claimed.release()
    assert place.use() is not None


def test_joining_waits_while_an_engine_looks_and_not_for_one_that_ends(place: Rendezvous) -> None:
    assert place.join() is None
    engine, look = place.announce(URL), place.claim()
    assert engine is not None
    assert look is not None
    assert place.join(SILENCE) is None
    threading.Timer(SILENCE, look.release).start()
    assert place.join(ANSWER_SECONDS) == URL
    assert place.claim() is None, "it counts as a user from then on"


def test_one_at_a_time_starts_an_engine(place: Rendezvous) -> None:
    first = place.begin()
    assert first is not None
    assert place.begin() is None
    first.release()
    assert place.begin() is not None


def test_locks_of_a_killed_process_are_free(place: Rendezvous) -> None:
    code = (
        "import sys; from pathlib import Path; from kb_config.rendezvous import Rendezvous\n"
        f"p = Rendezvous(Path(sys.argv[1])); p.announce({URL!r}); p.use(); p.begin()\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(place.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert (place.url(), place.claim(), place.begin()) == (URL, None, None)
        process.send_signal(signal.SIGKILL)
        process.wait(START_SECONDS)
    assert place.url() is None
    assert None not in (place.claim(), place.begin())


def test_the_files_are_their_owners_and_no_link_is_followed(place: Rendezvous) -> None:
    assert place.announce(URL) is not None
    assert (place.folder / "listening").stat().st_mode & 0o777 == 0o600
    elsewhere = place.folder / "elsewhere"
    elsewhere.write_text("kept")
    (place.folder / "users").symlink_to(elsewhere)
    with pytest.raises(OSError, match="users"):
        place.use()
    assert elsewhere.read_text() == "kept"


def test_a_damaged_rendezvous_file_is_read_without_an_error(place: Rendezvous) -> None:
    lock = place.announce(URL)
    assert lock is not None
    (place.folder / "listening").write_bytes(b"\xff\xfe")
    assert place.url() is not None
    (place.folder / "listening").write_bytes(b"")
    assert place.url() is None
