"""Every link of the contract leads on, and in the whole run every operation has answered with a success."""

from __future__ import annotations

import pytest

from kb_contracts.api import operations as ops
from kb_contracts.api.errors import ERRORS
from kb_verify.client import Client, problem
from kb_verify.links import LINKS, follow
from kb_verify.served import Served
from kb_verify.slow import cancelled
from kb_verify.tally import Tally


@pytest.mark.parametrize(
    ("source", "link"), LINKS, ids=[f"{source}-{link.operation}" for source, link in LINKS]
)
def test_every_link_leads_on(kb: Client, source: str, link: ops.Link) -> None:
    """From an answer, by what it says, to a success; a job that has ended by then cannot be cancelled."""
    response = follow(kb, source, link)
    if link.operation == "cancelJob" and response.status_code == ERRORS["job_finished"].status:
        problem(response, "job_finished")
        cancelled(kb)
        kb.tally.count_link(source, link.operation, 200)
    else:
        assert response.is_success, f"{response.status_code} {response.text[:300]}"


def test_every_operation_has_succeeded(kb: Client, tally: Tally, served: Served) -> None:
    """Each that is served at least once in this run."""
    for operation_id in ("getStatus", "getHealth", "getReadiness", "listTags"):
        kb.request(ops.BY_ID[operation_id])
    served_ids = {operation.id for operation in served.operations}
    counts = [count for count in tally.operation_counts() if count.operation in served_ids]
    missed = [count.operation for count in counts if not count.succeeded]
    if missed == ["cancelJob"]:
        cancelled(kb)
    else:
        assert not missed, f"no success was answered by {', '.join(missed)}"
