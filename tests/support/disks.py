"""A small file system of its own, so that a test can fill a real disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str, *, owner: Path | None = None) -> Iterator[Path]:
    """Mount a tmpfs of `size` (such as `8m`) at the new folder `folder`, with the owner of `owner` if set."""
    folder.mkdir()
    stat = (owner or folder).stat()
    options = f"size={size},mode=700,uid={stat.st_uid},gid={stat.st_gid}"
    mounting = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    mounted = subprocess.run(mounting, capture_output=True, check=False, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Fill the disk to the last byte, as another program would."""
    with (disk / "others").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(os.urandom(4096))
