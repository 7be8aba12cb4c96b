"""A small file system of its own, so that a test can fill a real disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str, *, owner: Path | None = None, inodes: int = 0) -> Iterator[Path]:
    """Mount a tmpfs of `size` (such as `8m`) and of `inodes` (0: unbounded) at the new folder `folder`.

    It has the owner of `owner` if set.
    """
    folder.mkdir()
    stat = (owner or folder).stat()
    options = f"size={size},nr_inodes={inodes},mode=700,uid={stat.st_uid},gid={stat.st_gid}"
    mounting = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    mounted = subprocess.run(mounting, capture_output=True, check=False, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Fill the disk to the last byte, as another program would."""
    with (disk / "others").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(os.urandom(4096))


def take_inodes(disk: Path, left: int) -> None:
    """Leave so many inodes."""
    for number in range(os.statvfs(disk).f_favail - left):
        (disk / f"other {number}").touch()
