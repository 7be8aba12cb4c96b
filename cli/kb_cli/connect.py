"""The engine that a command asks, from its options and settings."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kb_cli.config import ClientSettings, read

if TYPE_CHECKING:
    from kb_cli.client import EngineClient


def engine(options: argparse.Namespace, *, user: str = "") -> EngineClient:
    """A client, to be used as a context manager; `user` as `EngineClient` has it.

    Raises:
        SettingsError, CliError: a setting cannot be used.
    """
    from kb_cli.client import EngineClient

    settings = read(ClientSettings, options)
    return EngineClient(settings.engine_url, settings.api_key, user=user)
