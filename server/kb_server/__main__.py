"""`python -m kb_server`: the MCP server over HTTP, with settings from the environment.

Exit status: 0 after SIGTERM or SIGINT, 1 when it cannot start, 2 when a setting is wrong. The flags are for
the workers that it starts itself.
"""

from __future__ import annotations

import argparse
import os
import sys

from kb_config.settings import SettingsError
from kb_server.app import StartError, start
from kb_server.processes import ParentLink, Worker, read_settings
from kb_server.settings import ServerSettings


def main() -> int:
    """Serve until a stop is requested; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kb_server", description="kb's MCP server over HTTP.")
    parser.add_argument("--worker", type=Worker.parse, help=argparse.SUPPRESS)
    parser.add_argument("--supervised", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        settings = read_settings() if options.worker else ServerSettings.read(os.environ)
        parent = ParentLink.open(options.supervised)
        return start(settings, on_ready=parent.report_ready, worker=options.worker)
    except (SettingsError, StartError) as error:
        sys.stderr.write(f"kb server: {error}\n")
        return 2 if isinstance(error, SettingsError) else 1


if __name__ == "__main__":
    sys.exit(main())
