"""The process of a reader on a kernel without Landlock."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from kb_readers import worker
from kb_readers.sandbox import kernel, landlock
from kb_readers.sandbox.readable import Readable


def _restrict(readable: Iterable[Readable]) -> None:
    raise kernel.refused(errno.ENOSYS)


if __name__ == "__main__":
    landlock.restrict = _restrict
    worker.main()
