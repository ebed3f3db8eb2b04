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


def compose() -> dict[str, Any]:
    [found] = documents(DEPLOY / "compose.yaml")
    return found
