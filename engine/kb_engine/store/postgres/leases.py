"""The leases of this engine's jobs, which end by the clock of the database.

A job that is taken has a lease, and the lease an end. Its holder moves the end on while it lives; after the
end the job is anybody's again. What a holder commits it commits under its lease, with the job's row held, so
that nothing comes of work whose lease was lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from kb_engine.store.repository.transaction import Read


async def renew(read: Read, leases: Sequence[str], seconds: float) -> set[str]:
    """Move the end of leases on; those that are still good, and those that are just being used."""
    await read.rows(
        "UPDATE jobs SET lease_until = clock_timestamp() + make_interval(secs => ?) WHERE seq = ANY (ARRAY("
        "SELECT seq FROM jobs WHERE status = 'running' AND lease = ANY (?::text[]) FOR UPDATE SKIP LOCKED))",
        (seconds, leases),
    )
    good = "SELECT lease FROM jobs WHERE status = 'running' AND lease = ANY (?::text[])"
    return {lease for (lease,) in await read.rows(good, (leases,))}
