"""Two servers behind one name: both answer, and an agent's upload stays with one of them."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from kb_load.processes import free_port
from tests.integration import docker_engine
from tests.integration.conftest import Images
from tests.integration.containers import Balancer, Engine, Server, lab
from tests.support.eventually import eventually
from tests.support.mcp_http import Caller
from tests.support.patience import ANSWER_SECONDS, JOB_SECONDS
from tests.support.stack import ROOT

pytestmark = pytest.mark.process

CHUNKS = [b"# Estuary\n\n", b"Fresh water lies above salt water ", b"where a river meets the sea.\n"]


@dataclass(frozen=True)
class Replicas:
    """Two servers, and the balancer in front of them."""

    servers: tuple[Server, Server]
    balancer: Balancer


@pytest.fixture
def replicas(images: Images, balancer_image: str) -> Iterator[Replicas]:
    """An engine, two servers with one name, and the balancer in front."""
    with lab() as made:
        network, port = made.network(), free_port()
        engine = Engine(images.engine, network, KB_EMBEDDER="hash")
        url = f"http://127.0.0.1:{port}"
        first, second = (Server(images.server, network, KB_PUBLIC_URL=url) for _ in range(2))
        balancer = Balancer(balancer_image, network, published=port)
        made.started(engine, first, second, balancer)
        for part in (engine, first, second, balancer):
            part.until_ready()
        yield Replicas((first, second), balancer)


@pytest.fixture(scope="session")
def balancer_image(docker: None) -> str:
    folder = ROOT / "tests" / "integration" / "balancer"
    return os.environ.get("KB_BALANCER_IMAGE") or docker_engine.build(
        "", "kb-balancer:test", file=folder / "Dockerfile", context=folder
    )


def start(caller: Caller) -> str:
    """Begin an upload and return its id."""
    size = sum(map(len, CHUNKS))
    return str(caller.ok("kb_upload_start", filename="estuary.md", total_size=size)["upload_id"])


def finish(caller: Caller, upload: str) -> str:
    """Send all chunks of an upload, finish it and return the job's id."""
    for index, chunk in enumerate(CHUNKS):
        data = base64.b64encode(chunk).decode()
        caller.ok("kb_upload_chunk", upload_id=upload, chunk_index=index, data=data)
    return str(caller.ok("kb_upload_finish", upload_id=upload)["job_id"])


def holder(replicas: Replicas, upload: str) -> Server:
    (found,) = [server for server in replicas.servers if server.run("find", "/data", "-name", upload)]
    return found


def test_all_uploads_of_an_agent_succeed_behind_one_name(replicas: Replicas) -> None:
    """Over a new connection each time, and by the upload URL; one replica receives them all."""
    chosen = set()
    for _ in range(5):
        caller = replicas.balancer.caller()
        upload = start(caller)
        chosen.add(holder(replicas, upload).id)
        finish(caller, upload)
    assert len(chosen) == 1
    caller, size = replicas.balancer.caller(), sum(map(len, CHUNKS))
    begun = caller.ok("kb_upload_start", filename="estuary.md", total_size=size)
    assert httpx.put(begun["upload_url"], content=b"".join(CHUNKS), timeout=ANSWER_SECONDS).is_success
    caller.ok("kb_upload_finish", upload_id=begun["upload_id"])


def test_without_affinity_an_upload_is_not_known_to_the_other_replica(replicas: Replicas) -> None:
    """The error says so; affinity prevents it. All further calls may go to any replica."""
    first, second = (server.caller() for server in replicas.servers)
    upload = start(first)
    data = base64.b64encode(CHUNKS[0]).decode()
    refused = second.refused("kb_upload_chunk", upload_id=upload, chunk_index=0, data=data)
    assert refused["error"] == "upload_not_found"
    added = first.ok("kb_addnote", text="Herons stand still", wait_seconds=JOB_SECONDS)
    assert second.ok("kb_get", document_id=added["document_id"])["title"] == "Herons stand still"


def test_agents_of_a_lost_replica_go_on_with_the_other(replicas: Replicas) -> None:
    """Calls are answered at once, the open upload is reported lost, and a new one succeeds."""
    balanced = replicas.balancer
    upload = start(balanced.caller())
    holder(replicas, upload).kill()
    eventually(lambda: balanced.answer("/readyz"), lambda status: status == 200, what="the other replica")
    again = balanced.caller()
    assert again.ok("kb_search", query="anything")["results"] == []
    assert again.refused("kb_upload_finish", upload_id=upload)["error"] == "upload_not_found"
    job = finish(again, start(again))
    again.ok("kb_jobs", job_id=job, wait_seconds=JOB_SECONDS)
    assert again.ok("kb_search", query="river meets the sea")["results"]
