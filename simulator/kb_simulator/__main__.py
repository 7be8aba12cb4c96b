"""`python -m kb_simulator`: run the fake engine on a port until it is stopped by a signal."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from kb_config.settings import SettingsError
from kb_simulator.settings import SimulatorSettings

_OPTIONS = ("seed", "host", "port", "control", "clock", "jobs")
"""The settings that are options, too."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM. Exit codes: 0 stopped, 1 a port is in use, 2 a setting is invalid."""
    parser = argparse.ArgumentParser(prog="kb_simulator", description="A fake engine that fails on command.")
    for each in SimulatorSettings.describe({}):
        if (name := each.variable.removeprefix("KB_SIM_").lower()) in _OPTIONS:
            parser.add_argument(f"--{name}", metavar="VALUE", help=f"{each.help} (default {each.value})")
    try:
        settings = SimulatorSettings.read(os.environ, **vars(parser.parse_args(arguments)))
    except SettingsError as error:
        print(f"kb_simulator: {error}", file=sys.stderr)  # noqa: T201  # what a command says
        return 2
    # aiohttp loads all CA certificates of the machine on import, a fifth of the start-up time, although this
    # program uses no TLS.
    os.environ.setdefault("SSL_CERT_FILE", os.devnull)
    try:
        asyncio.run(serve(settings))
    except OSError as error:
        print(f"kb_simulator: {error.strerror or error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


async def serve(settings: SimulatorSettings) -> None:
    """Listen until SIGINT or SIGTERM; print one line with the addresses when ready."""
    # Imported after `main` has set SSL_CERT_FILE.
    from kb_simulator.harness.app import Simulator

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with Simulator(settings) as simulator:
        control = f", control plane {simulator.control_url}" if simulator.control_url else ""
        print(f"simulator ready: {simulator.url}{control}, seed {settings.seed}", flush=True)  # noqa: T201
        await stopped.wait()


if __name__ == "__main__":
    sys.exit(main())
