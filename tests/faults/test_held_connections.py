"""A server with many connections held open answers all callers, and recovers afterwards."""

from __future__ import annotations

import pytest

from bench.connections import Stage, run

pytestmark = pytest.mark.process

ALLOWED_MIB = 16
"""Maximum growth in MiB after 2,000 dropped WebSockets; a leak of 15 KB each would be 30."""


def test_everybody_is_answered_while_connections_are_held() -> None:
    """With fewer descriptors than half-open connections; every call and every probe is answered."""
    report = run(half_open=400, sockets=200, drops=4000, descriptors=384, seconds=1)
    stages: dict[str, Stage] = {stage.name: stage for stage in report.stages}
    assert [stage.name for stage in report.stages if stage.failed] == []
    assert stages["half-open"].descriptors < 384
    assert (stages["sockets open"].held, stages["drops"].held) == (200, 2000)
    assert stages["after"].resident_mib - stages["drops"].resident_mib < ALLOWED_MIB
