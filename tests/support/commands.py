"""`kb` commands run in this process, for tests of commands that end by themselves."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO

import pytest

from kb_cli.main import main
from kb_load.processes import clean_environment


@dataclass(frozen=True)
class Ended:
    """Exit status and output of a command."""

    returncode: int
    stdout: str
    stderr: str


def ended(*arguments: str, **environment: str) -> Ended:
    """Run `kb` with `arguments`, as `entry_ended` does."""
    return entry_ended(main, *arguments, **environment)


def entry_ended(entry: Callable[[], int], /, *arguments: str, **environment: str) -> Ended:
    """Run a command with only the settings of `environment`; the state of this process is restored.

    `entry` reads `arguments` from the command line. Output of subprocesses is not captured here; `capfd` has
    it.
    """
    out, err = StringIO(), StringIO()
    wanted = clean_environment(**environment)
    with pytest.MonkeyPatch.context() as patched, _restored(), redirect_stdout(out), redirect_stderr(err):
        for name in os.environ.keys() - wanted.keys():
            patched.delenv(name)
        for name, value in wanted.items():
            patched.setenv(name, value)
        patched.setattr(sys, "argv", ["kb", *arguments])
        try:
            status = entry()
        except SystemExit as exit_:
            status = exit_.code if isinstance(exit_.code, int) else 1
    return Ended(status, out.getvalue(), err.getvalue())


@contextmanager
def _restored() -> Iterator[None]:
    """Restore process-wide state that servers and engines change: logging, and garbage collection."""
    named = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    handlers, thresholds = logging.root.handlers[:], gc.get_threshold()
    levels = {each: each.level for each in (logging.root, *named)}
    try:
        yield
    finally:
        logging.root.handlers[:] = handlers
        for each, level in levels.items():
            each.setLevel(level)
        gc.unfreeze()
        gc.set_threshold(*thresholds)
