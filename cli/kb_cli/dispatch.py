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

Command = Callable[[argparse.Namespace, Output], int | None]
"""None is `Exit.OK`."""


def dispatch(arguments: Sequence[str]) -> int:
    """Run what `arguments` say; the exit status. Raises SystemExit as argparse does, with 0 or 2."""
    options = build_parser().parse_args(arguments)
    _make_streams_safe()
    try:
        module, _, function = options.run.partition(":")
        command: Command = getattr(import_module(module), function)
        status = command(options, Output(as_json=getattr(options, "json", False))) or Exit.OK
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
        package, how = (error.name or "").partition(".")[0], install_command(*options.extras)
        hint = f"; install what `kb {options.command}` needs with: {how}" if options.extras else ""
        return _fail(options, f"the package {package} is not installed{hint}", Exit.FAILED)
    except Exception as error:  # noqa: BLE001 - the edge: people get a line, and the traceback when they ask
        if os.environ.get("LOG_LEVEL") == "debug":
            traceback.print_exc()
        message = f"a fault of kb itself: {type(error).__name__}: {error} (LOG_LEVEL=debug shows where)"
        return _fail(options, message, Exit.FAILED)
    return status


def _fail(options: argparse.Namespace, message: str, status: Exit) -> Exit:
    sys.stderr.write(f"kb {options.command}: {printable.line(message)}\n")
    return status


def _make_streams_safe() -> None:
    # A terminal that cannot show a character gets its escape; no answer may fail over that.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
