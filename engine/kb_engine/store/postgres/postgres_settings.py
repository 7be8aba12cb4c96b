"""The settings of a base in PostgreSQL. Importing this module imports no driver."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kb_config.settings import Setting
from kb_engine.index.postgres import EXACT_BELOW
from kb_engine.parts import PartSettings


class PostgresSettings(PartSettings, frozen=True, kw_only=True):
    """The settings of a base in PostgreSQL. Times are in seconds."""

    lease_seconds: Annotated[
        float,
        Setting(
            "KB_LEASE_SECONDS",
            "time until other engines take over the jobs of a stopped engine, in seconds (PostgreSQL)",
        ),
        msgspec.Meta(ge=1),
    ] = 30.0
    postgres_exact_below: Annotated[
        int,
        Setting(
            "KB_POSTGRES_EXACT_BELOW",
            "number of passages from which searches by meaning on PostgreSQL are approximate",
        ),
        msgspec.Meta(ge=0),
    ] = EXACT_BELOW
