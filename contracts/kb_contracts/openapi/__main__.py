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
    status = 0
    for surface in ApiSurface:
        path, text = folder / ABOUT[surface].filename, written(surface)
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        if checking:
            status = 1
            sys.stderr.write(f"{path.name} lags behind the operations; write it with {parser.prog}\n")
        else:
            path.write_text(text, "utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
