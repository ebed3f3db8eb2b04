"""The dashboard, and resources of KEDA and Prometheus, fit types made of their definitions."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import DEPLOY, of_kind, rendered
from tests.helpers.machine_requirements import program

PACKAGES = (
    *("typescript@5", "@grafana/schema@13", "@kubernetes-models/keda@2"),
    "@kubernetes-models/prometheus-operator@5",
)
QUIET = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
DASHBOARD = ("@grafana/schema", "Dashboard")
SCALING = ("@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject", "IScaledObject")
MONITORING = "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/"
SCRAPING = (f"{MONITORING}ServiceMonitor", "IServiceMonitor")
ALERTING = (f"{MONITORING}PrometheusRule", "IPrometheusRule")
OPTIONS = {"strict": True, "noEmit": True, "skipLibCheck": True, "module": "nodenext"}


def complaints(there: Path, of: tuple[str, str], data: Any) -> str:
    """What TypeScript says of a literal of that type: also of fields that this does not have."""
    package, name = of
    code = f'import type {{ {name} }} from "{package}";\nexport const it: {name} = '
    (there / "it.ts").write_text(code + json.dumps(data, indent=1))
    config = {"compilerOptions": OPTIONS, "files": ["it.ts"]}
    (there / "tsconfig.json").write_text(json.dumps(config))
    command = [there / "node_modules" / ".bin" / "tsc", "-p", there]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout


@pytest.mark.slow
def test_grafana_keda_and_prometheus_know_every_field(tmp_path: Path) -> None:
    npm = program("npm", package="npm")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    subprocess.run([npm, "install", *QUIET, *PACKAGES], cwd=tmp_path, check=True, timeout=300)
    dashboard = json.loads((DEPLOY / "grafana" / "rebaser.json").read_text())
    [scaling] = of_kind(rendered("keda"), "ScaledObject")
    monitored = rendered("tls")

    assert not complaints(tmp_path, DASHBOARD, dashboard)
    assert not complaints(tmp_path, SCALING, scaling)
    assert not complaints(tmp_path, SCRAPING, of_kind(monitored, "ServiceMonitor")[0])
    assert not complaints(tmp_path, ALERTING, of_kind(monitored, "PrometheusRule")[0])
    dashboard["panels"][0]["tittle"] = dashboard["panels"][0].pop("title")
    scaling["spec"]["minReplicas"] = scaling["spec"].pop("minReplicaCount")
    assert "'\"tittle\"' does not exist" in complaints(tmp_path, DASHBOARD, dashboard)
    assert "'\"minReplicas\"' does not exist" in complaints(tmp_path, SCALING, scaling)
