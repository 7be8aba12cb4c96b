"""The simulator's settings: one typed object, read once, refused at start when a value is wrong."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kb_config.settings import Setting, Settings, SettingsError
from kb_contracts.access.keys import published_in
from kb_contracts.access.reach import Reach
from kb_simulator.engine.jobs import POLICY_FORMS, Policy, policy_of

MEBIBYTE = 1024 * 1024
MOST_NAMESPACES = 1_000

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class SimulatorSettings(Settings, frozen=True, kw_only=True):
    """Settings of the simulator. Sizes are bytes."""

    seed: Annotated[int, Setting("KB_SIM_SEED", "what every random decision derives from")] = 7
    host: Annotated[str, Setting("KB_SIM_HOST", "address the fake engine listens on")] = "127.0.0.1"
    port: Annotated[Port, Setting("KB_SIM_PORT", "its port; 0: any free one")] = 8900
    control: Annotated[
        Port | None, Setting("KB_SIM_CONTROL", "port of the control plane, on loopback; empty: off")
    ] = None
    clock: Annotated[
        str,
        Setting("KB_SIM_CLOCK", "how time passes", choices=("autojump", "manual", "real")),
    ] = "autojump"
    jobs: Annotated[str, Setting("KB_SIM_JOBS", f"how jobs end: {POLICY_FORMS}")] = "at-once"
    api_key: Annotated[
        str, Setting("KB_API_KEY", "bearer key that callers must send; empty: none", secret=True)
    ] = ""
    namespaces: Annotated[int, Setting("KB_SIM_NAMESPACES", "namespaces at once"), msgspec.Meta(ge=1)] = (
        MOST_NAMESPACES
    )
    max_upload_bytes: Annotated[
        int, Setting("KB_MAX_UPLOAD_BYTES", "largest file taken"), msgspec.Meta(ge=1)
    ] = 100 * MEBIBYTE

    keep_originals: Annotated[
        bool, Setting("KB_KEEP_ORIGINALS", "keep the files that are sent, each content once")
    ] = False
    published_collections: Annotated[
        str,
        Setting(
            "KB_PUBLISHED_COLLECTIONS",
            "what the role service reads: collections by name, or beginnings followed by *; empty: all",
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Refuse a policy that is none, and what names no collections."""
        try:
            published_in(self.published_collections)
        except ValueError as error:
            raise SettingsError(
                f"KB_PUBLISHED_COLLECTIONS={self.published_collections!r}: {error}"
            ) from error
        try:
            policy_of(self.jobs)
        except ValueError as error:
            raise SettingsError(f"KB_SIM_JOBS={self.jobs!r}: {error}") from error

    @property
    def policy(self) -> Policy:
        """How jobs end, until the control plane says otherwise."""
        return policy_of(self.jobs)

    @property
    def published(self) -> Reach | None:
        """How far the role `service` reaches; None: everywhere."""
        return published_in(self.published_collections)
