"""Writes the committed OpenAPI documents, or says which of them lag behind the operations.

python -m kb_contracts.openapi            write contracts/engine.openapi.yaml and ragler.openapi.yaml
python -m kb_contracts.openapi --check    fail when one that is written lags
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kb_contracts.api.operations import ApiSurface
from kb_contracts.openapi import ABOUT, written

FOLDER = Path(__file__).resolve().parents[2]
"""Where the documents are written."""


def main(arguments: Sequence[str] | None = None, *, folder: Path = FOLDER) -> int:
    """Write the documents into `folder`, or with `--check` say which lag; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kb_contracts.openapi", description="Write the contract.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file lags")
    checking = parser.parse_args(arguments).check
    lagging = [
        surface for surface in ApiSurface if not _is_written(folder / ABOUT[surface].filename, surface)
    ]
    for surface in lagging:
        name = ABOUT[surface].filename
        if checking:
            sys.stderr.write(f"{name} lags behind the operations; write it with {parser.prog}\n")
        else:
            (folder / name).write_text(written(surface), "utf-8")
    return 1 if checking and lagging else 0


def _is_written(path: Path, surface: ApiSurface) -> bool:
    return path.is_file() and path.read_text("utf-8") == written(surface)


if __name__ == "__main__":
    sys.exit(main())
