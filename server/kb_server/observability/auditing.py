"""The audit log of a server: each tool call, and each refused request; one hash chain per process.

If the log is off, a call costs only one check of `ACTIVE`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kb_config.audit import AuditLog, AuditSettings
from kb_config.settings import SettingsError
from kb_server.tool import Call

ACTIVE: AuditLog | None = None
"""The audit log of this process; None if it is off."""


@contextmanager
def writing(settings: AuditSettings, home: Path) -> Iterator[None]:
    """Write the audit log, if the settings enable it, until the block is left. Raises SettingsError."""
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
    """Write a tool call; `outcome` is None for success. `subject` is the document in its arguments."""
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
    """Write a request that was refused before it was served."""
    if ACTIVE is not None:
        ACTIVE.write("request", reason, address=address)
