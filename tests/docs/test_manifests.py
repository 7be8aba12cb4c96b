"""The files for Compose, Kubernetes and systemd, checked against the documentation, without Docker.

Kubernetes manifests are validated against the schemas of its releases, from a package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # has no types
import pytest
import yaml

from kb_engine.settings import EngineSettings
from kb_server.services import Services, ragler_key
from kb_server.settings import ServerSettings
from tests.support.stack import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
RELEASES = ("1.29", kubernetes_validate.latest_version())
OVERLAYS = ("sqlite", "postgres", "qdrant")
KB = "base/kb.yml"
Manifest = dict[str, Any]

kustomize = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl, which builds overlays, is not installed"
)


def documents(name: str) -> list[Manifest]:
    return [dict(each) for each in yaml.load_all((KUBERNETES / name).read_text("utf-8"), yaml.CSafeLoader)]


def one(name: str, kind: str) -> Manifest:
    """The only document of a kind in a manifest."""
    (found,) = [each for each in documents(name) if each["kind"] == kind]
    return found


def containers(name: str, kind: str = "Deployment") -> dict[str, Manifest]:
    """The containers of a manifest's deployment or other workload, by name."""
    listed = one(name, kind)["spec"]["template"]["spec"]["containers"]
    return {container["name"]: container for container in listed}


def environment(container: Manifest) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def compose(path: str) -> dict[str, Manifest]:
    services: dict[str, Manifest] = yaml.load((ROOT / path).read_text("utf-8"), yaml.CSafeLoader)["services"]
    return services


def workload(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """The specification of a workload, and its first container."""
    (found,) = [each for each in manifests if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return dict(found["spec"])


@pytest.mark.parametrize("release", RELEASES)
def test_every_document_is_valid_under_the_schemas_of_kubernetes(release: str) -> None:
    """Strict validation: an unknown field is an error, in an old release and in today's."""
    for path in (*sorted(KUBERNETES.glob("*.yml")), KUBERNETES / KB):
        for document in documents(str(path.relative_to(KUBERNETES))):
            kubernetes_validate.validate(document, release, strict=True)


@pytest.fixture(scope="module")
def overlays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Manifest]]:
    """The manifests of each overlay with an ingress, the component that a user adds to it."""
    folder, found = tmp_path_factory.mktemp("overlay"), {}
    for overlay in OVERLAYS:
        listed = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(KUBERNETES / "overlays" / overlay, folder)],
            "components": [os.path.relpath(KUBERNETES / "components" / "ingress", folder)],
        }
        (folder / "kustomization.yml").write_text(yaml.safe_dump(listed), "utf-8")
        command = ["kubectl", "kustomize", str(folder)]
        made = subprocess.run(command, check=True, capture_output=True, text=True)
        found[overlay] = [*yaml.load_all(made.stdout, yaml.CSafeLoader)]
    return found


@pytest.mark.process
@kustomize
def test_every_overlay_with_an_ingress_is_valid(overlays: dict[str, list[Manifest]]) -> None:
    """From 1.29 to the newest release with a schema; documents that overlays share are validated once."""
    newest = int(kubernetes_validate.latest_version().split(".")[1])
    for manifests in overlays.values():
        assert "Ingress" in {each["kind"] for each in manifests}
    for manifest in {yaml.safe_dump(each): each for made in overlays.values() for each in made}.values():
        for minor in range(29, newest + 1):
            kubernetes_validate.validate(manifest, f"1.{minor}", strict=True)


@pytest.mark.process
@kustomize
def test_the_servers_of_the_postgres_overlay_name_each_engine(overlays: dict[str, list[Manifest]]) -> None:
    manifests = overlays["postgres"]
    engines = workload(manifests, "StatefulSet", "kb-engine")
    (server,) = workload(manifests, "Deployment", "kb")["template"]["spec"]["containers"]
    expected = [
        f"http://kb-engine-{index}.{engines['serviceName']}:8000" for index in range(engines["replicas"])
    ]
    assert environment(server)["KB_ENGINE_URL"].split(",") == expected
    assert "volumeClaimTemplates" not in engines


@pytest.mark.process
@kustomize
def test_the_backup_of_the_sqlite_overlay_mounts_the_volume_of_the_engine(
    overlays: dict[str, list[Manifest]],
) -> None:
    manifests = overlays["sqlite"]
    engine = workload(manifests, "StatefulSet", "kb-engine")
    pod = workload(manifests, "CronJob", "kb-backup")["jobTemplate"]["spec"]["template"]["spec"]
    (claim,) = engine["volumeClaimTemplates"]
    claims = {
        volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "emptyDir" not in volume
    }
    assert claims == {f"{claim['metadata']['name']}-kb-engine-0", "kb-backups"}
    (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = engine["template"]["metadata"]["labels"]
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()


def test_a_misspelt_field_is_found() -> None:
    """Proves that the validation above detects errors."""
    broken = one("sidecar.yml", "Deployment")
    broken["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(broken, RELEASES[-1], strict=True)


@pytest.mark.requirement("R80", "R81")
def test_the_sidecar_has_three_replicas_with_the_backend_on_localhost() -> None:
    deployment = one("sidecar.yml", "Deployment")
    assert (deployment["metadata"]["name"], deployment["spec"]["replicas"]) == ("ragler", 3)
    found = containers("sidecar.yml")
    assert set(found) == {"backend", "mcp-server"}
    assert found["backend"]["image"] == "ragler-backend:latest"
    assert [port["containerPort"] for port in found["backend"]["ports"]] == [3000]
    settings = environment(found["mcp-server"])
    assert settings["RAGLER_API_URL"] == "http://localhost:3000"
    assert settings["RAGLER_API_KEY"] == {"secretKeyRef": {"name": "ragler-secrets", "key": "api-key"}}
    # The containers of a pod share its ports.
    assert settings["KB_MCP_PORT"] == "3001"


@pytest.mark.requirement("R82")
def test_the_standalone_has_two_replicas_on_port_3001() -> None:
    deployment = one("standalone.yml", "Deployment")
    assert (deployment["metadata"]["name"], deployment["spec"]["replicas"]) == ("ragler-mcp-server", 2)
    (container,) = containers("standalone.yml").values()
    assert [port["containerPort"] for port in container["ports"]] == [3001]
    assert environment(container)["KB_MCP_PORT"] == "3001"


@pytest.mark.requirement("R35", "R39")
@pytest.mark.parametrize("name", ["sidecar.yml", "standalone.yml", "compose.yml"])
def test_the_mcp_server_serves_the_three_tools_alone_on_port_3001(name: str) -> None:
    given: dict[str, Any]
    if name == "compose.yml":
        given = {
            key: str(value)
            for key, value in compose("deploy/ragler/compose.yml")["mcp-server"]["environment"].items()
        }
    else:
        given = environment(containers(name)["mcp-server"])
    filled = {
        key: value if isinstance(value, str) and "$" not in value else "filled-in"
        for key, value in given.items()
    }
    settings = ServerSettings.read({"MCP_SERVER_PORT": "3000", **filled})
    assert (settings.toolsets, settings.port) == (["ragler"], 3001)
    assert settings.ragler_api_url.endswith(":3000")
    assert Services(settings).ragler_is_configured


@pytest.mark.parametrize("name", ["sidecar.yml", "standalone.yml"])
def test_secrets_named_in_a_manifest_exist(name: str) -> None:
    secret = one("secret.yml", "Secret")
    for container in containers(name).values():
        for value in environment(container).values():
            if isinstance(value, dict):
                asked = value["secretKeyRef"]
                assert asked["name"] == secret["metadata"]["name"]
                assert asked["key"] in secret["stringData"]
    assert set(secret["stringData"].values()) == {""}


@pytest.mark.parametrize("name", ["sidecar.yml", "standalone.yml"])
def test_the_mcp_server_is_probed_bounded_and_without_rights(name: str) -> None:
    """The image's requirements: a fixed user, a read-only root, two writable places."""
    container = containers(name)["mcp-server"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] == "/healthz"
    assert container["resources"]["limits"]["memory"]
    context = container["securityContext"]
    assert context["runAsUser"] == 10001
    assert context["readOnlyRootFilesystem"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/tmp"}


@pytest.mark.parametrize(("name", "replicas"), [("sidecar.yml", 3), ("standalone.yml", 2)])
def test_replicas_share_a_service_with_affinity_a_budget_and_a_policy(name: str, replicas: int) -> None:
    labels = one(name, "Deployment")["spec"]["template"]["metadata"]["labels"]
    service, budget, policy = (
        one(name, kind)["spec"] for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy")
    )
    chosen = (service["selector"], budget["selector"]["matchLabels"], policy["podSelector"]["matchLabels"])
    for selector in chosen:
        assert selector.items() <= labels.items()
    assert service["sessionAffinity"] == "ClientIP"
    assert service["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"] > 600
    assert budget["minAvailable"] == replicas - 1
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def allowed(policy: Manifest) -> set[tuple[str, str | int]]:
    """The pods of the namespace, by name, that a policy allows as peers, and the ports."""
    rules = [("from", rule) for rule in policy["spec"].get("ingress", [])]
    rules += [("to", rule) for rule in policy["spec"].get("egress", [])]
    return {
        (peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"], port["port"])
        for direction, rule in rules
        for peer in rule.get(direction, [])
        if "app.kubernetes.io/name" in peer.get("podSelector", {}).get("matchLabels", {})
        for port in rule["ports"]
    }


def test_the_sidecars_policy_lets_in_the_standalone_servers() -> None:
    """Their backend is the service of the sidecar's pods; each policy names the pods of the other."""
    assert ("ragler-mcp-server", "api") in allowed(one("sidecar.yml", "NetworkPolicy"))
    assert ("ragler", 3000) in allowed(one("standalone.yml", "NetworkPolicy"))


def test_kbs_own_engine_keeps_its_base_on_a_volume_and_is_reached_by_the_servers_alone() -> None:
    """One engine, because it owns its base; the settings of engine and servers agree."""
    engine = one(KB, "StatefulSet")["spec"]
    (container,) = containers(KB, "StatefulSet").values()
    (claim,) = engine["volumeClaimTemplates"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert engine["replicas"] == 1
    assert mounts[claim["metadata"]["name"]] == "/data"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    policies = {each["metadata"]["name"]: each for each in documents(KB) if each["kind"] == "NetworkPolicy"}
    assert allowed(policies["kb-engine"]) == {("kb", "api"), ("prometheus", "api")}
    assert allowed(policies["kb"]) == {("kb-engine", 8000), ("prometheus", "mcp")}
    settings = environment(containers(KB)["server"])
    assert settings["KB_ENGINE_URL"] == f"http://{engine['serviceName']}:8000"
    assert settings["KB_API_KEY"] == environment(container)["KB_API_KEY"]
    assert ServerSettings.read({"KB_MCP_PORT": settings["KB_MCP_PORT"]}).port == 3000


def test_a_mounted_folder_is_what_the_server_of_the_stack_may_add_by_path() -> None:
    """Read-only; without a folder it is an empty volume."""
    server = compose("compose.yml")["server"]
    assert "${KB_FILES:-files}:/files:ro" in server["volumes"]
    assert ServerSettings.read({"KB_FILE_ROOTS": server["environment"]["KB_FILE_ROOTS"]}).file_roots == [
        "/files"
    ]


@pytest.mark.requirement("R76", "R77", "R78", "R79")
def test_the_compose_file_of_ragler_has_its_four_services() -> None:
    """Images, ports and environment as in RAGler's document."""
    services = compose("deploy/ragler/compose.yml")
    assert set(services) == {"backend", "mcp-server", "redis", "qdrant"}
    backend, server = services["backend"], services["mcp-server"]
    assert backend["image"] == "ragler-backend:latest"
    assert backend["ports"] == ["127.0.0.1:3000:3000"]
    assert {"REDIS_HOST": "redis", "QDRANT_URL": "http://qdrant:6333"}.items() <= backend[
        "environment"
    ].items()
    assert "OPENAI_API_KEY" in backend["environment"]
    assert server["image"] == "ragler-mcp-server:latest"
    assert server["environment"]["RAGLER_API_URL"] == "http://backend:3000"
    assert "RAGLER_API_KEY" in server["environment"]
    assert server["depends_on"] == ["backend"]
    assert (services["redis"]["image"], services["redis"]["ports"]) == (
        "redis:7-alpine",
        ["127.0.0.1:6379:6379"],
    )
    assert services["qdrant"]["image"] == "qdrant/qdrant:latest"
    assert services["qdrant"]["ports"] == ["127.0.0.1:6333:6333"]


def test_the_index_of_ragler_is_qdrant_by_default() -> None:
    """Only in RAGler's stack; the general default is the index in the base, which needs no service."""
    backend = compose("deploy/ragler/compose.yml")["backend"]
    assert backend["environment"]["VECTOR_DB_TYPE"] == "${VECTOR_DB_TYPE:-qdrant}"
    assert EngineSettings.read({}).index == ""


@pytest.mark.requirement("K8", "E31")
def test_the_stack_has_server_and_engine_and_publishes_the_server_on_loopback_alone() -> None:
    """The server calls the engine by its service name; keys come from the environment."""
    services = compose("compose.yml")
    assert {name for name, service in services.items() if "profiles" not in service} == {"engine", "server"}
    assert services["server"]["environment"]["KB_ENGINE_URL"] == "http://engine:8000"
    for service, key in (("engine", "KB_API_KEY"), ("server", "KB_API_KEY"), ("server", "KB_MCP_API_KEY")):
        assert services[service]["environment"][key] == f"${{{key}:-}}"
    (port,) = services["server"]["ports"]
    assert port.startswith("${KB_PUBLISH_ADDRESS:-127.0.0.1}:")
    assert "ports" not in services["engine"]


def test_raglers_tools_ask_the_engine_of_the_stack() -> None:
    given = compose("compose.yml")["server"]["environment"]
    unset = {name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for name, value in given.items()}
    settings = ServerSettings.read({**unset, "KB_API_KEY": "between-them"})
    assert settings.ragler_is_engine
    assert (Services(settings).ragler_is_configured, ragler_key(settings)) == (True, "between-them")


@pytest.mark.parametrize("service", ["engine", "server"])
def test_the_stack_of_the_tests_is_the_shipped_one(service: str) -> None:
    """Except for keys (set), ports (not published) and restarts, which would hide a fault."""
    shipped, tested = compose("compose.yml")[service], compose("compose.test.yml")[service]
    differing = {"restart", "ports", "environment"}
    assert {name: value for name, value in shipped.items() if name not in differing} == {
        name: value for name, value in tested.items() if name not in differing
    }
    assert tested["environment"].keys() <= shipped["environment"].keys()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("name", ["kb-engine", "kb-server"])
def test_a_unit_of_systemd_is_valid_and_confined(name: str, tmp_path: Path) -> None:
    """`verify` wants the program of ExecStart, which is not installed here; the exposure is of 0 to 10."""
    text = (ROOT / "deploy" / "systemd" / f"{name}.service").read_text("utf-8")
    for other in ("kb-engine", "kb-server"):
        unit = (ROOT / "deploy" / "systemd" / f"{other}.service").read_text("utf-8")
        (tmp_path / f"{other}.service").write_text(unit.replace("/opt/kb/bin/kb", "/bin/true"), "utf-8")
    path = tmp_path / f"{name}.service"
    verified = subprocess.run(
        ["systemd-analyze", "verify", path], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", path],
        check=True,
        capture_output=True,
    )
    given = dict(
        pair.split("=", 1)
        for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE)
        for pair in line.split()
    )
    settings: type[EngineSettings | ServerSettings] = (
        EngineSettings if name == "kb-engine" else ServerSettings
    )
    (tmp_path / "key").write_text("a-key", "utf-8")
    read = settings.read(
        {key: str(tmp_path / "key") if key.endswith("_FILE") else value for key, value in given.items()}
    )
    assert read.api_key == "a-key"
