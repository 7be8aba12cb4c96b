"""`python -m kb_engine`: the engine alone. Exit status: 0 after a signal, 1 no start, 2 a wrong setting."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any

from kb_config.logs import configure_logging
from kb_config.settings import SettingsError
from kb_config.tracing import exporting
from kb_engine.serving import serve
from kb_engine.settings import EngineSettings
from kb_engine.start_errors import StartError
from kb_engine.store.port import BaseRefused

logger = logging.getLogger("kb_engine")


def main() -> int:
    """Serve until a stop signal; return the exit status."""
    description = "kb's engine, with settings from the environment."
    argparse.ArgumentParser(prog="python -m kb_engine", description=description).parse_args()
    try:
        start(EngineSettings.read(os.environ))
    except SettingsError as error:
        return _refuse(2, error)
    except (StartError, BaseRefused) as error:
        return _refuse(1, error)
    return 0


def start(
    settings: EngineSettings, *, on_ready: Callable[[str], object] = str, linger: float | None = None
) -> None:
    """Serve as `serve` does, under uvloop if it is installed. `on_ready` is called with the base URL.
    Raises StartError, kb_engine.store.BaseRefused: it cannot start.
    """
    configure_logging(settings.log_level, part="engine", secrets=settings.secrets)
    try:
        run: Callable[[Coroutine[Any, Any, None]], None] = import_module("uvloop").run
    except ImportError:
        run = asyncio.run

    def ready(url: str) -> None:
        gc.freeze()  # modules and models are permanent: neither the collector nor the exit has to visit them
        logger.info("ready", extra={"url": url})
        on_ready(url)

    with exporting(os.environ, "kb-engine"):
        run(serve(settings, on_ready=ready, linger=linger))


def _refuse(status: int, error: Exception) -> int:
    sys.stderr.write(f"kb engine: {error}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
