"""`kb serve`, `kb stdio` and `kb engine`: each starts one part, and imports no other."""

from __future__ import annotations

import argparse

from kb_cli.config import is_set, read
from kb_cli.exits import CliError, Exit
from kb_cli.output import Output
from kb_server.processes import ParentLink
from kb_server.settings import ServerSettings


def serve(options: argparse.Namespace, _out: Output) -> int:
    """Serve the toolsets over HTTP until SIGTERM or Ctrl-C."""
    settings = read(ServerSettings, options)
    from kb_server.app import StartError, start

    try:
        return start(settings, on_ready=ParentLink.open(options.supervised).report_ready)
    except StartError as error:
        raise CliError(Exit.FAILED, str(error)) from error


def stdio(options: argparse.Namespace, _out: Output) -> None:
    """Serve toolsets on stdin and stdout until stdin ends."""
    # Clients show each line on stderr as an error: unless more is asked for, only what is one is written.
    level = None if is_set(ServerSettings, "LOG_LEVEL", options) else "warn"
    settings = read(ServerSettings, options, log_level=options.log_level or level)
    from kb_server.stdio import start

    start(settings)


def engine(options: argparse.Namespace, _out: Output) -> None:
    """Run the engine until SIGTERM or Ctrl-C."""
    from kb_engine.settings import EngineSettings

    settings = read(EngineSettings, options)
    from kb_engine.__main__ import start
    from kb_engine.app import StartError
    from kb_engine.store import BaseRefused

    try:
        start(settings, on_ready=ParentLink.open(options.supervised).report_ready)
    except (StartError, BaseRefused) as error:
        raise CliError(Exit.FAILED, str(error)) from error
