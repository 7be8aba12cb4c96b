"""From arguments to the command's function, and from its failure to one line and an exit status."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module

from kb_cli import printable
from kb_cli.exits import CliError, Exit
from kb_cli.output import Output
from kb_cli.parser import build_parser
from kb_config.installing import install_command
from kb_config.settings import SettingsError

Command = Callable[[argparse.Namespace, Output], int]

_EXTRAS = {
    "up": ("server", "engine"),
    "serve": ("server",),
    "stdio": ("server",),
    "move": ("server",),
    "engine": ("engine",),
    "reindex": ("engine",),
    "verify": ("verify",),
    "bench": ("load",),
}
"""What a command needs beyond kb's own dependencies."""


def dispatch(arguments: Sequence[str]) -> int:
    """Run what `arguments` say; the exit status. Raises SystemExit as argparse does, with 0 or 2."""
    options = build_parser().parse_args(arguments)
    _make_streams_safe()
    try:
        status = _command(options.run)(options, Output(as_json=getattr(options, "json", False)))
        sys.stdout.flush()
    except CliError as error:
        return _fail(options, error.message, error.status)
    except SettingsError as error:
        return _fail(options, str(error), Exit.USAGE)
    except KeyboardInterrupt:
        return _fail(options, "interrupted", Exit.INTERRUPTED)
    except BrokenPipeError:
        # Whoever reads us has gone; a second failure at the flush of exit would say so in a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKEN_PIPE
    except ModuleNotFoundError as error:
        return _fail(options, _missing(options.command, error), Exit.FAILED)
    except Exception as error:  # noqa: BLE001 - the edge: people get a line, and the traceback when they ask
        if os.environ.get("LOG_LEVEL") == "debug":
            traceback.print_exc()
        message = f"a fault of kb itself: {type(error).__name__}: {error} (LOG_LEVEL=debug shows where)"
        return _fail(options, message, Exit.FAILED)
    return status


def _command(place: str) -> Command:
    module, _, function = place.partition(":")
    command: Command = getattr(import_module(module), function)
    return command


def _fail(options: argparse.Namespace, message: str, status: Exit) -> Exit:
    sys.stderr.write(f"kb {options.command}: {printable.line(message)}\n")
    return status


def _missing(command: str, error: ModuleNotFoundError) -> str:
    extras = _EXTRAS.get(command, ())
    how = f"; install what `kb {command}` needs with: {install_command(*extras)}" if extras else ""
    package = (error.name or "").partition(".")[0]
    return f"the package {package} is not installed{how}"


def _make_streams_safe() -> None:
    # A terminal that cannot show a character gets its escape; no answer may fail over that.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
