"""Files by path: only regular ones below the allowed folders, for any disguise of the path."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kb_server.tool import ToolError
from kb_server.toolsets.knowledge import files
from kb_server.toolsets.knowledge.files import open_below, source


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a.html").write_text("allowed")
    (tmp_path / "secret.html").write_text("secret")
    (tmp_path / "rootling").mkdir()
    (tmp_path / "rootling" / "a.html").write_text("secret")
    return folder


def read(root: Path, path: Path | str) -> str:
    with open_below([str(root)], str(path)) as file:
        return file.read().decode()


def refused(root: Path, path: Path | str) -> str:
    """Return the error code of the refusal, after checking that no descriptor stays open."""
    descriptors = psutil.Process().num_fds()
    with pytest.raises(ToolError) as error:
        open_below([str(root)], str(path))
    assert psutil.Process().num_fds() == descriptors, "nothing stays open"
    return error.value.code


@pytest.mark.requirement("N6")
def test_a_file_below_the_folder_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "link.html").symlink_to(root / "inner" / "a.html")
    (root / "other").symlink_to("inner")
    monkeypatch.chdir(root)
    for path in ("inner/a.html", root / "inner/../inner/a.html", root / "link.html", root / "other/a.html"):
        assert read(root, path) == "allowed"


def test_the_folder_itself_may_be_a_link(root: Path) -> None:
    """The operator configures it, and `~` is the operator's home."""
    link = root.parent / "link"
    link.symlink_to(root)
    assert read(link, link / "inner" / "a.html") == "allowed"
    assert read(link, root / "inner" / "a.html") == "allowed"


@pytest.mark.parametrize(
    "path",
    [
        "{root}/../secret.html", "{root}/inner/../../secret.html", "{root}/out.html",
        "{root}/up/secret.html", "{root}ling/a.html", "/etc/passwd", "/proc/self/environ", "nothing.html",
        "",
    ],
)  # fmt: skip
@pytest.mark.requirement("N86")
def test_no_way_leads_out_of_the_folder(root: Path, path: str) -> None:
    """Existing and missing files get the same error, so that nothing is revealed."""
    (root / "out.html").symlink_to(root.parent / "secret.html")
    (root / "up").symlink_to(root.parent)
    assert refused(root, path.format(root=root)) == "path_not_allowed"


def test_without_folders_nothing_is_read_and_the_error_says_how_to_allow_it(root: Path) -> None:
    with pytest.raises(ToolError) as error:
        open_below([], str(root / "inner" / "a.html"))
    assert error.value.code == "path_not_allowed"
    assert "KB_FILE_ROOTS" in error.value.message


@pytest.mark.parametrize("replaced", ["inner", "inner/a.html"])
def test_a_link_put_in_the_way_after_the_check_leads_nowhere(
    root: Path, replaced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path was inside when it was resolved, but not when it is opened."""
    opened: Callable[..., int] = files._opened

    def swapped(*arguments: object) -> int:
        place = root / replaced
        place.rename(root / "moved")
        target = root.parent / "rootling" if place.name == "inner" else root.parent / "secret.html"
        place.symlink_to(target)
        return opened(*arguments)

    monkeypatch.setattr(files, "_opened", swapped)
    assert refused(root, root / "inner" / "a.html") in ("file_not_readable", "file_not_found")


@pytest.mark.parametrize(("replacement", "code"), [(None, "file_not_found"), ("a file", "file_not_readable")])
def test_a_link_that_goes_while_it_is_resolved_is_a_clear_error(
    root: Path, replacement: str | None, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a link when it was examined, and is no longer one when it is read."""
    link, readlink = root / "link.html", os.readlink
    link.symlink_to(root / "inner" / "a.html")

    def too_late(path: str) -> str:
        link.unlink()
        if replacement is not None:
            link.write_text(replacement)
        return readlink(path)

    monkeypatch.setattr(os, "readlink", too_late)
    assert refused(root, link) == code


def test_a_path_that_changes_all_the_time_is_read_or_a_clear_error(root: Path) -> None:
    path, ended = root / "changing.html", threading.Event()

    def change() -> None:
        while not ended.is_set():
            path.unlink(missing_ok=True)
            path.symlink_to(root / "inner" / "a.html")
            path.unlink()
            path.write_text("allowed")

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(500):
            try:
                assert read(root, path) in ("allowed", "")
            except ToolError as error:
                assert error.code in ("file_not_found", "file_not_readable")  # noqa: PT017
    finally:
        ended.set()
        changing.join()


@pytest.mark.requirement("N86")
@pytest.mark.parametrize("name", ["nothing.html", "inner/nothing.html", "inner/a.html/b.html"])
def test_a_file_that_is_not_there_is_not_found(root: Path, name: str) -> None:
    """Inside the folder, the caller may know."""
    assert refused(root, root / name) == "file_not_found"


@pytest.mark.requirement("N86")
def test_only_a_regular_file_is_read(root: Path) -> None:
    os.mkfifo(root / "pipe.html")
    (root / "folder.html").mkdir()
    (root / "loop.html").symlink_to("loop.html")
    for name in ("pipe.html", "folder.html", "loop.html", "."):
        assert refused(root, root / name) == "file_not_readable"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_says_so(root: Path) -> None:
    (root / "inner" / "a.html").chmod(0)
    assert refused(root, root / "inner" / "a.html") == "file_not_readable"


def test_a_path_that_no_system_takes_is_refused(root: Path) -> None:
    assert refused(root, f"{root}/a\0.html") == "invalid_parameter"
    assert refused(root, f"{root}/{'x' * 300}.html") == "file_not_readable"


async def test_a_file_that_grows_is_sent_as_it_was(root: Path) -> None:
    """Each attempt starts anew, and sends no more than the announced size."""
    path = root / "inner" / "a.html"
    with open_below([str(root)], str(path)) as file:
        sent = source(file, "a.html", 100)
        path.write_text("allowed and more")
        for _ in range(2):
            assert b"".join([block async for block in sent.blocks()]) == b"allowed"
    assert sent.size == len("allowed")
