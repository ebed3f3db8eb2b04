"""The dashboard and the scaling are what types made by Grafana, and of KEDA's definition, say."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import DEPLOY, SCALED_OBJECT, documents
from tests.helpers.machine_requirements import program

PACKAGES = ("typescript@5", "@grafana/schema@13", "@kubernetes-models/keda@2")
QUIET = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
DASHBOARD = ("@grafana/schema", "Dashboard")
SCALING = ("@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject", "IScaledObject")
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
def test_grafana_and_keda_know_every_field(tmp_path: Path) -> None:
    npm = program("npm", package="npm")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    subprocess.run([npm, "install", *QUIET, *PACKAGES], cwd=tmp_path, check=True, timeout=300)
    dashboard = json.loads((DEPLOY / "grafana" / "rebaser.json").read_text())
    [scaling] = documents(SCALED_OBJECT)

    assert not complaints(tmp_path, DASHBOARD, dashboard)
    assert not complaints(tmp_path, SCALING, scaling)
    dashboard["panels"][0]["tittle"] = dashboard["panels"][0].pop("title")
    scaling["spec"]["minReplicas"] = scaling["spec"].pop("minReplicaCount")
    assert "'\"tittle\"' does not exist" in complaints(tmp_path, DASHBOARD, dashboard)
    assert "'\"minReplicas\"' does not exist" in complaints(tmp_path, SCALING, scaling)
