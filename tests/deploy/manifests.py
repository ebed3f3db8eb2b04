"""The files of deploy/, read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.paths import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
SCALED_OBJECT = KUBERNETES / "overlays/keda/scaledobject.yaml"


def documents(file: Path) -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load_all(file.read_text())


def kubernetes() -> list[tuple[Path, dict[str, Any]]]:
    """Every resource, kustomizations apart, with the file it stands in."""
    files = (f for f in KUBERNETES.rglob("*.yaml") if f.name != "kustomization.yaml")
    return [(file, found) for file in sorted(files) for found in documents(file)]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [found for _, found in kubernetes() if found["kind"] == kind]


def rebaser() -> dict[str, Any]:
    """The pod that is a Rebaser."""
    [found] = [d for d in of_kind("Deployment") if d["metadata"]["name"] == "rebaser"]
    template: dict[str, Any] = found["spec"]["template"]
    return template


def environment(kustomization: Path) -> dict[str, str]:
    """What the pod of a Rebaser has in its environment as the folder has it, but for secrets.

    With the variables of Kubernetes for each Service that has an address, which pods get unless
    their manifests say otherwise.
    """
    literals, services = _gathered(kustomization)
    env = {each["name"]: "secret" for each in rebaser()["spec"]["containers"][0]["env"]}
    for service in services:
        if service["spec"].get("clusterIP") != "None":
            env |= service_variables(service["metadata"]["name"], service["spec"]["ports"])
    return env | literals


def _gathered(kustomization: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The literals of the settings, and the Services."""
    [told] = documents(kustomization / "kustomization.yaml")
    literals: dict[str, str] = {}
    services = []
    for name in told["resources"]:
        if (kustomization / name).is_dir():
            below, more = _gathered((kustomization / name).resolve())
            literals |= below
            services += more
        else:
            services += [d for d in documents(kustomization / name) if d["kind"] == "Service"]
    for generator in told.get("configMapGenerator", []):
        literals |= dict(each.split("=", 1) for each in generator["literals"])
    return literals, services


def service_variables(service: str, ports: list[dict[str, Any]]) -> dict[str, str]:
    """What Kubernetes tells each pod of a Service in its namespace, as Docker once did."""
    name, address = service.upper().replace("-", "_"), "10.96.7.7"
    first = ports[0]["port"]
    told = {f"{name}_SERVICE_HOST": address, f"{name}_SERVICE_PORT": f"{first}"}
    told[f"{name}_PORT"] = f"tcp://{address}:{first}"
    for port in ports:
        link = f"{name}_PORT_{port['port']}_TCP"
        told |= {
            f"{name}_SERVICE_PORT_{port['name'].upper().replace('-', '_')}": f"{port['port']}",
            link: f"tcp://{address}:{port['port']}",
            f"{link}_PROTO": "tcp",
            f"{link}_PORT": f"{port['port']}",
            f"{link}_ADDR": address,
        }
    return told


def compose() -> dict[str, Any]:
    [found] = documents(DEPLOY / "compose.yaml")
    return found
