"""The simulator's settings: one typed object, read once; a wrong value is refused at start."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kb_config.settings import Setting, Settings
from kb_config.shared import DEFAULT_UPLOAD_BYTES, EngineKey, KeepOriginals, PublishedCollections, UploadBytes
from kb_contracts.access.keys import published_in
from kb_contracts.access.reach import Reach
from kb_simulator.engine.jobs import POLICY_FORMS, Policy, policy_of

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class SimulatorSettings(Settings, frozen=True, kw_only=True):
    """Settings of the simulator. Sizes are bytes."""

    seed: Annotated[int, Setting("KB_SIM_SEED", "seed of random decisions")] = 7
    host: Annotated[str, Setting("KB_SIM_HOST", "address to listen on")] = "127.0.0.1"
    port: Annotated[Port, Setting("KB_SIM_PORT", "port to listen on; 0: any free one")] = 8900
    control: Annotated[
        Port | None, Setting("KB_SIM_CONTROL", "port of the control plane, on loopback; empty: off")
    ] = None
    clock: Annotated[
        str,
        Setting("KB_SIM_CLOCK", "clock: autojump, manual or real", choices=("autojump", "manual", "real")),
    ] = "autojump"
    jobs: Annotated[str, Setting("KB_SIM_JOBS", f"outcome of jobs: {POLICY_FORMS}")] = "at-once"
    api_key: EngineKey = ""
    namespaces: Annotated[
        int, Setting("KB_SIM_NAMESPACES", "maximum number of namespaces"), msgspec.Meta(ge=1)
    ] = 1_000
    max_upload_bytes: UploadBytes = DEFAULT_UPLOAD_BYTES
    keep_originals: KeepOriginals = False
    published_collections: PublishedCollections = ""

    def __post_init__(self) -> None:
        """Refuse an unknown job policy and invalid names of collections."""
        self.parsed("published_collections", published_in)
        self.parsed("jobs", policy_of)

    @property
    def policy(self) -> Policy:
        """The initial job policy, until the control plane changes it."""
        return policy_of(self.jobs)

    @property
    def published(self) -> Reach | None:
        """The access scope of the role `service`, or None for unrestricted."""
        return self.parsed("published_collections", published_in)
