"""Enter the sandbox and print its state as JSON, for the engine's status."""

from __future__ import annotations

import sys

import msgspec

from kb_readers.sandbox import enter

if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(enter("kb_readers")))
