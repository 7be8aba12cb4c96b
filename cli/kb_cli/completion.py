"""`kb completion`: the script that lets a shell complete commands and options of `kb`.

The script calls `kb` for each completion, so that it needs no renewal with a new version.
"""

from __future__ import annotations

import argparse

from argcomplete.shell_integration import shellcode

from kb_cli.output import Output


def run(options: argparse.Namespace, out: Output) -> None:
    """Print the script for one shell."""
    out.stdout.write(shellcode(["kb"], shell=options.shell).lstrip())
