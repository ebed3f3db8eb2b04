"""The files of deploy/, read, and what Helm makes of the chart among them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.machine_requirements import lacking
from tests.helpers.paths import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "rebaser"
EXAMPLES = {
    file.name.removesuffix("-values.yaml"): yaml.safe_load(file.read_text())
    for file in sorted((CHART / "ci").glob("*-values.yaml"))
}
"""Values of each kind of installation, by its name."""
RELEASE, NAMESPACE = "rebaser", "team"
"""The most likely name, and the one whose Services make variables that look like settings."""


def documents(file: Path) -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load_all(file.read_text())


def helm(*values: dict[str, Any]) -> list[dict[str, Any]]:
    """Answer of `tests.deploy.helm` for each of these values."""
    if find_spec("helm_python") is None:
        lacking("Helm", "helm-python-sdk has no wheel for it")
    done = subprocess.run(
        [sys.executable, "-m", "tests.deploy.helm"],
        input=json.dumps({"values": values, "release": RELEASE, "namespace": NAMESPACE}),
        capture_output=True,
        cwd=ROOT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


@cache
def examples() -> dict[str, dict[str, Any]]:
    """Helm's answer for each example."""
    return dict(zip(EXAMPLES, helm(*EXAMPLES.values()), strict=True))


def rendered(example: str, **more: Any) -> list[dict[str, Any]]:
    """Every resource of that installation; `more` are values in place of the example's."""
    [answer] = helm(EXAMPLES[example] | more) if more else [examples()[example]]
    assert "error" not in answer, answer["error"]
    files = [text for name, text in answer["files"].items() if name.endswith("yaml")]
    return [found for found in yaml.safe_load_all("\n---\n".join(files)) if found]


def of_kind(resources: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [found for found in resources if found["kind"] == kind]


def rebaser(resources: list[dict[str, Any]]) -> dict[str, Any]:
    """The pod that is a Rebaser."""
    [found] = [d for d in of_kind(resources, "Deployment") if d["metadata"]["name"] == RELEASE]
    template: dict[str, Any] = found["spec"]["template"]
    return template


def environment(resources: list[dict[str, Any]]) -> dict[str, str]:
    """Environment of the pod of a Rebaser; secrets are the names of their keys.

    With the variables of Kubernetes for each Service that has an address, which pods get unless
    their manifests say otherwise.
    """
    [container] = rebaser(resources)["spec"]["containers"]
    env: dict[str, str] = {}
    for service in of_kind(resources, "Service"):
        if service["spec"].get("clusterIP") != "None":
            env |= service_variables(service["metadata"]["name"], service["spec"]["ports"])
    names = [each["configMapRef"]["name"] for each in container["envFrom"]]
    for settings in of_kind(resources, "ConfigMap"):
        if settings["metadata"]["name"] in names:
            env |= settings["data"]
    for each in container["env"]:
        source = each["valueFrom"]
        env[each["name"]] = source.get("secretKeyRef", {"key": "pod"})["key"]
    return env


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
