"""The settings of a base in PostgreSQL. Importing this module imports no driver."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kb_config.parts import PartSettings
from kb_config.settings import Setting, SettingsError
from kb_engine.address import NotAnAddress, address_of, printable

EXACT_BELOW = 20_000  # number of chunks from which the HNSW index is built, which makes inserts slower
LEASE_SECONDS = 30.0
"""Lifetime of a lease without renewal, in seconds; then the jobs of the engine are free for all engines."""


class PostgresSettings(PartSettings, frozen=True, kw_only=True):
    """The settings of a base in PostgreSQL. Times are in seconds."""

    lease_seconds: Annotated[
        float,
        Setting(
            "KB_LEASE_SECONDS",
            "time until other engines take over the jobs of a stopped engine, in seconds (PostgreSQL)",
        ),
        msgspec.Meta(ge=1),
    ] = LEASE_SECONDS
    postgres_exact_below: Annotated[
        int,
        Setting(
            "KB_POSTGRES_EXACT_BELOW",
            "number of passages from which searches by meaning on PostgreSQL are approximate",
        ),
        msgspec.Meta(ge=0),
    ] = EXACT_BELOW
    postgres_pooler: Annotated[
        str,
        Setting(
            "KB_POSTGRES_POOLER",
            "address of the base through PgBouncer, for transactions; KB_STORE is then the direct address",
            printable=printable,
        ),
    ] = ""

    def __post_init__(self) -> None:
        try:
            if self.postgres_pooler:
                address_of(self.postgres_pooler)
        except NotAnAddress as error:
            raise SettingsError(f"KB_POSTGRES_POOLER: the address of the pooler {error}") from error
