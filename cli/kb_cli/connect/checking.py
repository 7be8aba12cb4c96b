"""The check of `kb doctor` for the clients that are installed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from kb_cli.connect.clients import CLIENTS, Machine
from kb_cli.connect.connect_command import ADVICE, server_of, state_of
from kb_cli.connect.editing import NotEditable, member_of
from kb_cli.doctor import Finding


def clients(options: argparse.Namespace) -> Iterator[Finding]:
    """Yield whether each installed client is configured for kb."""
    server = server_of(options)
    machine = Machine(Path.home(), os.environ)
    for name, client in CLIENTS.items():
        file = client.file(machine)
        try:
            entry = member_of(file.read_text("utf-8"), client.format, client.place, "kb")
        except FileNotFoundError:
            if not client.is_installed(machine):
                continue
            entry = None
        except (OSError, ValueError, NotEditable) as error:
            yield Finding(
                "error", client.title, f"{file} {error}", "the client cannot read it either; correct the file"
            )
            continue
        if entry is None:
            yield Finding("warning", client.title, "not configured for kb", f"kb connect {name}")
            continue
        state = state_of(client, entry, server)
        if state == "connected":
            yield Finding("ok", client.title, "configured for kb")
        elif state == "set otherwise":
            advice = f"to use this kb: kb connect {name}"
            yield Finding("warning", client.title, "configured for a different kb", advice)
        else:
            refusal = f"configured for kb, which refuses it: {state}"
            yield Finding("error", client.title, refusal, ADVICE.format(name))
