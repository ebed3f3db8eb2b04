"""`python -m tests.deploy.helm`: Helm's own code on deploy/helm/rebaser, in a process of its own.

It reads a JSON object `{"values": [{…}, …], "release": …, "namespace": …}` and prints a list: for
each values `{"files": …}`, what `helm template` makes of it by file, or `{"error": …}`; both with
the messages of `helm lint`.
"""

import json
import sys
from typing import Any

import helm_python

from tests.helpers.paths import ROOT

CHART = ROOT / "deploy" / "helm" / "rebaser"


def answer(values: dict[str, Any], release: str, namespace: str) -> dict[str, Any]:
    found = helm_python.lint(CHART, values, strict=True)
    answer: dict[str, Any] = {"lint": [message["error"] for message in found["messages"]]}
    try:
        with helm_python.Chart.load(CHART) as chart:
            chart.validate_schema(values)
            answer["files"] = chart.render(values, name=release, namespace=namespace)
    except helm_python.HelmError as error:
        answer["error"] = str(error)
    return answer


def main() -> None:
    asked = json.load(sys.stdin)
    where = asked["release"], asked["namespace"]
    json.dump([answer(values, *where) for values in asked["values"]], sys.stdout)


if __name__ == "__main__":
    main()
