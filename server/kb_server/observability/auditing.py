"""The audit log of a server: each call of a tool, and each request that was refused; a chain a process.

Where nobody has it written, a call costs one look at `ACTIVE`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kb_config.audit import AuditLog, AuditSettings
from kb_config.settings import SettingsError
from kb_server.tool import Call

ACTIVE: AuditLog | None = None
"""That of this process; None: none is written."""


@contextmanager
def writing(settings: AuditSettings, home: Path) -> Iterator[None]:
    """Have it written, where the settings say so, until the block is left. Raises SettingsError."""
    global ACTIVE
    try:
        ACTIVE = settings.open(home, "server")
    except OSError as error:
        raise SettingsError(
            f"KB_AUDIT: {error}; name a folder in KB_AUDIT_FOLDER that can be written"
        ) from error
    try:
        yield
    finally:
        if ACTIVE is not None:
            ACTIVE.close()
        ACTIVE = None


def note_call(tool: str, outcome: str | None, call: Call, subject: object) -> None:
    """Write that a tool was called; `outcome` None: it answered. `subject` is the document that it names."""
    if ACTIVE is not None:
        ACTIVE.write(
            tool,
            outcome or "ok",
            who=call.grant.name,
            address=call.address,
            documents=[str(subject)] if subject else (),
            found=call.log.get("result_count"),
            collection=str(call.log.get("collection_id") or ""),
            correlation_id=call.correlation_id,
        )


def note_refusal(reason: str, address: str) -> None:
    """Write that a request was refused before it was served."""
    if ACTIVE is not None:
        ACTIVE.write("request", reason, address=address)
