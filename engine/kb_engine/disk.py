"""Files: durable writes, which survive a loss of power, hashes, and exhausted file systems."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def sync(path: Path) -> None:
    """Sync a file or a folder to the disk: a new file's name is durable once its folder was synced."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lacks_inodes(path: Path) -> bool:
    """True if the file system of `path`, or of the first folder above it that is there, has no inode left."""
    there = next((each for each in (path, *path.parents) if each.exists()), None)
    if there is None:
        return False
    try:
        system = os.statvfs(there)
    except OSError:
        return False
    # Where files take no inodes (Btrfs) there are none at all. Four are left for the files of a start.
    return system.f_files > 0 and system.f_favail < _FILES_OF_A_START


NO_INODES = (
    "its file system has no inodes free (`df -i` counts them), so that no file can be made. "
    "Remove files there, of which small ones count as much as large ones, and start again."
)
_FILES_OF_A_START = 4  # the log of SQLite, its shared memory, a lock and a reserve
