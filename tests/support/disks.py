"""A disk that is really full: a small file system of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str, *, owner: Path | None = None, inodes: int = 0) -> Iterator[Path]:
    """A new folder on a disk of this size (`8m`), with so many inodes (0: no bound), of the owner of another
    folder where one is named."""
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
    """Leave not a byte, as another program does."""
    with (disk / "others").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(os.urandom(4096))


def take_inodes(disk: Path, left: int) -> None:
    """Leave so many inodes."""
    for number in range(os.statvfs(disk).f_favail - left):
        (disk / f"other {number}").touch()
