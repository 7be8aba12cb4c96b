"""`kb sim`: the fake engine on a port, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import os

from kb_cli.config import read
from kb_cli.exits import CliError, Exit
from kb_cli.output import Output
from kb_simulator.settings import SimulatorSettings


def run(options: argparse.Namespace, _out: Output) -> None:
    """Serve the simulator; one line says that it is ready, and where."""
    settings = read(SimulatorSettings, options)
    # Before aiohttp is imported: it would read every certificate of the machine, for a program without TLS.
    os.environ.setdefault("SSL_CERT_FILE", os.devnull)
    from kb_simulator.__main__ import serve

    try:
        asyncio.run(serve(settings))
    except OSError as error:
        raise CliError(Exit.FAILED, f"{error.strerror or error}; choose other ports") from error
