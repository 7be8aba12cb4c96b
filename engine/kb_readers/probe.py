"""Detects the sandbox support of this system, in a process like a reader's."""

from __future__ import annotations

import asyncio
import subprocess
from functools import cache

import msgspec

from kb_contracts.api.models import SandboxInfo
from kb_readers.child import reader_command, reader_environment
from kb_readers.sandbox import PARTS, Sandboxing, SandboxState

_SECONDS = 30.0


async def sandbox_info(setting: Sandboxing) -> SandboxInfo:
    """Return the sandbox state of readers under this setting."""
    if setting == "off":
        return SandboxInfo(setting=setting, holds=[], missing={})
    try:
        state = await asyncio.to_thread(_sandbox_state)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f"the process that tries it failed ({type(error).__name__})"
        state = SandboxState([], dict.fromkeys(PARTS, reason))
    return SandboxInfo(setting=setting, holds=[*state.holds], missing=state.missing)


@cache  # constant for the system, and determined by a process
def _sandbox_state() -> SandboxState:
    done = subprocess.run(  # noqa: S603 - our own Python
        reader_command("kb_readers.sandbox"),
        capture_output=True,
        check=True,
        cwd="/",
        env=reader_environment(),
        stdin=subprocess.DEVNULL,
        timeout=_SECONDS,
    )
    return msgspec.json.decode(done.stdout, type=SandboxState)
