"""The entry of the command `kb`.

This file is read by any Python that somebody may have, so that an old one is told in one line; what it
imports before that check must be as plain as itself.
"""

from __future__ import annotations

import sys

OLDEST = (3, 11)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    refused = refusal(sys.version_info[:3])
    if refused:
        sys.stderr.write(refused + "\n")
        return 2
    from kb_cli.command_line import dispatch

    return dispatch(sys.argv[1:] if arguments is None else arguments)


def refusal(version: tuple[int, ...]) -> str:
    """Why a Python of this version is not enough; empty where it is."""
    if version >= OLDEST:
        return ""
    found = ".".join(str(part) for part in version)
    return f"kb needs Python 3.11 or later; this is {found} ({sys.executable})"


if __name__ == "__main__":
    sys.exit(main())
