"""`python -m tests.deploy FILE`: whether Kubernetes takes what was rendered (`make manifests`)."""

import sys
from pathlib import Path

import kubernetes_validate

from tests.deploy.manifests import documents
from tests.deploy.test_manifests import KUBERNETES_VERSION

for found in documents(Path(sys.argv[1])):
    name = f"{found['kind']}/{found['metadata']['name']}"
    if found["kind"] != "ScaledObject":  # KEDA's own
        kubernetes_validate.validate(found, KUBERNETES_VERSION, strict=True)
    print(f"{name} is valid")
