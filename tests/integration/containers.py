"""Containers of the stack: engine, server and simulator as shipped, on their own network.

They run as a careful operator would run them: read-only root, no capabilities, ports on loopback only. Host
ports are chosen here, not by Docker, so that they stay the same after a restart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from kb_load.processes import free_port
from tests.integration.docker_engine import docker, inspect, labels
from tests.support.eventually import eventually
from tests.support.mcp_http import Caller
from tests.support.patience import ANSWER_SECONDS, CONTAINER_SECONDS
from tests.support.stack import ROOT

USER = 10001
ENGINE_KEY = "the-engine-key"


def served(caller: Caller, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the result of a tool, repeating a refused call for up to a minute."""
    return eventually(
        lambda: caller.call(tool, **arguments),
        lambda result: not result.get("isError"),
        what=f"an answer of {tool}",
    )


class Container:
    """One container of the stack, created at once and started on demand."""

    def __init__(
        self,
        image: str,
        network: Network,
        port: int,
        *,
        aliases: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        volume: str = "",
        published: int | None = None,
        command: list[str] | None = None,
        files: Mapping[Path, str] | None = None,
    ) -> None:
        self.closing: list[httpx.Client] = []
        self.network = network
        self.aliases = aliases
        self.host_port = published or free_port()
        container = DockerContainer(image).with_network(network).with_envs(**(environment or {}))
        if aliases:
            container.with_network_aliases(*aliases)
        if volume:
            container.with_volume_mapping(volume, "/data", "rw")
        if command:
            container.with_command(command)
        for path, inside in (files or {}).items():
            container.with_volume_mapping(path, inside, "ro")
        # Docker's own form for a port on one address only, which is missing in this library's types.
        container.ports[f"{port}/tcp"] = cast("int", ("127.0.0.1", self.host_port))
        container.with_tmpfs_mount("/tmp")
        container.with_kwargs(
            read_only=True, cap_drop=["ALL"], security_opt=["no-new-privileges:true"], labels=labels()
        )
        self.container = container

    @property
    def id(self) -> str:
        return self.container.get_container_id()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.host_port}"

    def start(self) -> None:
        self.container.start()

    def stop(self) -> int:
        docker("stop", "--time", str(round(CONTAINER_SECONDS)), self.id)
        return self.exit_status()

    def exit_status(self) -> int:
        state = inspect("container", self.id)["State"]
        assert state["Status"] == "exited", state
        return int(state["ExitCode"])

    def terminate(self) -> None:
        """Send SIGTERM without waiting for the end."""
        docker("kill", "--signal", "TERM", self.id)

    def kill(self) -> None:
        docker("kill", "--signal", "KILL", self.id)
        eventually(self.status, lambda status: status == "exited", what="its end")

    def remove(self) -> None:
        """Remove the container with its anonymous volumes, and close the connections to it."""
        while self.closing:
            self.closing.pop().close()
        with suppress(Exception):  # it may never have been created; the session's clean-up looks again
            self.container.stop()

    def status(self) -> str:
        return str(inspect("container", self.id)["State"]["Status"])

    def health(self) -> str:
        return str(inspect("container", self.id)["State"]["Health"]["Status"])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside the block the container is paused: its connections stay open without answers."""
        docker("pause", self.id)
        try:
            yield
        finally:
            docker("unpause", self.id)

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Inside the block the container is off the network: its name is unknown, connections are dead."""
        docker("network", "disconnect", self.network.name, self.id)
        try:
            yield
        finally:
            named = [part for alias in self.aliases for part in ("--alias", alias)]
            docker("network", "connect", *named, self.network.name, self.id)

    def run(self, *command: str) -> str:
        """Run a command inside and return its output on both streams.

        Raises:
            AssertionError: its status is not 0.
        """
        ended = self.container.exec(list(command))
        text = ended.output.decode(errors="replace").strip()
        assert ended.exit_code == 0, f"{command}: {ended.exit_code}\n{text}"
        return text

    def fails(self, *command: str) -> str:
        """Run a command inside that must fail, and return its output."""
        ended = self.container.exec(list(command))
        text = ended.output.decode(errors="replace").strip()
        assert ended.exit_code != 0, f"{command}: {text}"
        return text

    def logs(self) -> str:
        return b"".join(self.container.get_logs()).decode(errors="replace")

    def memory_bytes(self) -> int:
        """Its memory in bytes, without page cache that the kernel could reclaim."""
        stats = self.container.get_wrapped_container().stats(stream=False)["memory_stats"]
        inside = stats.get("stats", {})
        reclaimable = inside.get("total_inactive_file", inside.get("inactive_file", 0))
        return int(stats["usage"]) - int(reclaimable)

    def until_ready(self, path: str = "/readyz") -> None:
        """Wait until it answers 200.

        Raises:
            AssertionError: it ended, or did not answer in time; the message contains its log.
        """
        try:
            eventually(
                lambda: self.answer(path),
                lambda status: status in {200, -1},
                seconds=CONTAINER_SECONDS,
                what=f"an answer of 200 to {path}",
            )
            assert self.status() == "running"
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def answer(self, path: str) -> int:
        """Return the status of a GET; 0 for no answer, -1 if the container has ended."""
        try:
            return httpx.get(f"{self.url}{path}", timeout=ANSWER_SECONDS).status_code
        except httpx.TransportError:
            return 0 if self.status() in {"running", "created", "paused"} else -1


class McpContainer(Container):
    """A container with an MCP endpoint; `key` is the key for its clients."""

    key = ""

    @property
    def mcp_url(self) -> str:
        return f"{self.url}/mcp"

    def caller(self, key: str | None = None) -> Caller:
        """Return a plain MCP caller with its own connection, closed when the container is removed."""
        made = Caller(self.mcp_url, self.key if key is None else key)
        self.closing.append(made.http)
        return made


class Engine(Container):
    """An engine with the network name `engine`."""

    def __init__(self, image: str, network: Network, *, volume: str = "", **environment: str) -> None:
        settings = {"KB_API_KEY": ENGINE_KEY, **environment}
        super().__init__(image, network, 8000, aliases=("engine",), environment=settings, volume=volume)
        self.http = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {ENGINE_KEY}"}, timeout=ANSWER_SECONDS
        )
        self.closing.append(self.http)

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Return the answer of a GET that must succeed."""
        response = self.http.get(f"/api/v1{path}", params=query)
        assert response.is_success, response.text
        return dict(response.json())

    def post(self, path: str, **request: Any) -> dict[str, Any]:
        """Return the answer of a POST that must succeed."""
        response = self.http.post(f"/api/v1{path}", **request)
        assert response.is_success, response.text
        return dict(response.json())

    def documents_with(self, word: str) -> list[int]:
        found = self.post("/search", json={"query": word, "mode": "fts", "top": 100})
        return sorted({result["document"]["id"] for result in found["results"]})


class Server(McpContainer):
    """An MCP server with the network name `server`."""

    def __init__(
        self,
        image: str,
        network: Network,
        *,
        engine_url: str = "http://engine:8000",
        aliases: tuple[str, ...] = ("server",),
        volume: str = "",
        **environment: str,
    ) -> None:
        port = free_port()
        settings = {
            "KB_ENGINE_URL": engine_url,
            "KB_API_KEY": ENGINE_KEY,
            "KB_PUBLIC_URL": f"http://127.0.0.1:{port}",
            **environment,
        }
        super().__init__(
            image, network, 3000, aliases=aliases, environment=settings, volume=volume, published=port
        )
        self.key = settings.get("KB_MCP_API_KEY", "")


_CONTROL = (
    "import sys, urllib.request as u;"
    "print(u.urlopen(u.Request('http://127.0.0.1:8901/_sim' + sys.argv[2], method=sys.argv[1],"
    " data=sys.argv[3].encode() if sys.argv[3] else None,"
    " headers={'Content-Type': 'application/json'})).read().decode())"
)


class Simulator(Container):
    """A simulator with the network name `simulator`. Its control plane is on its own loopback."""

    def __init__(self, image: str, network: Network, **environment: str) -> None:
        super().__init__(
            image,
            network,
            8900,
            aliases=("simulator",),
            environment={"KB_API_KEY": ENGINE_KEY, **environment},
        )

    def control(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer of the control plane, called from inside the container."""
        sent = json.dumps(body) if body is not None else ""
        return dict(json.loads(self.run("python", "-c", _CONTROL, method, path, sent)))


class Balancer(McpContainer):
    """HAProxy with the shipped configuration, in front of all servers of the network."""

    CONFIGURATION = ROOT / "deploy" / "replicas" / "haproxy.cfg"

    def __init__(self, image: str, network: Network, *, published: int) -> None:
        inside = "/usr/local/etc/haproxy/haproxy.cfg"
        super().__init__(
            image,
            network,
            3000,
            published=published,
            command=["haproxy", "-W", "-db", "-f", inside],
            files={self.CONFIGURATION: inside},
        )


@dataclass
class Lab:
    """Networks, volumes and containers of one test or module, removed in reverse order."""

    _undo: list[Callable[[], object]] = field(default_factory=list)

    def network(self) -> Network:
        network = Network(docker_network_kw={"labels": labels()}).create()
        self._undo.append(network.remove)
        return network

    def volume(self) -> str:
        named = [part for name, value in labels().items() for part in ("--label", f"{name}={value}")]
        name = docker("volume", "create", *named)
        self._undo.append(lambda: docker("volume", "rm", name))
        return name

    def add(self, *containers: Container) -> None:
        self._undo += [container.remove for container in containers]

    def started(self, *containers: Container) -> None:
        for container in containers:
            self.add(container)
            container.start()

    def ready(self, *containers: Container) -> None:
        """Start all containers, then wait until they answer; they are removed at the end."""
        self.started(*containers)
        for container in containers:
            container.until_ready()

    def close(self) -> None:
        while self._undo:
            self._undo.pop()()


@contextmanager
def lab() -> Iterator[Lab]:
    made = Lab()
    try:
        yield made
    finally:
        made.close()
