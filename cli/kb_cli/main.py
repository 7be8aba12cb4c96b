"""The entry point of the command `kb`.

Any Python version must be able to parse this file, so that an old one gets a message of one line; the same
holds for its imports before that check.
"""

from __future__ import annotations

import gc
import sys

OLDEST = (3, 11)
ALLOCATIONS = 10_000
"""Number of live new objects that triggers the garbage collector. Python's 700 would trigger it hundreds of
times while a server imports its modules, which leaves no garbage.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    refused = refusal(sys.version_info[:3])
    if refused:
        sys.stderr.write(refused + "\n")
        return 2
    gc.set_threshold(ALLOCATIONS)
    from kb_cli.command_line import dispatch

    return dispatch(sys.argv[1:] if arguments is None else arguments)


def refusal(version: tuple[int, ...]) -> str:
    """Return the reason for refusing a Python of this version, or an empty text."""
    if version >= OLDEST:
        return ""
    found = ".".join(str(part) for part in version)
    return f"kb needs Python 3.11 or later; this is {found} ({sys.executable})"


if __name__ == "__main__":
    sys.exit(main())
