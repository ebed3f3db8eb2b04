"""`python -m tests.deploy.helm`: Helm's own code on deploy/helm/rebaser, in a process of its own.

It reads a JSON object `{"values": …, "release": …, "namespace": …}` and prints `{"files": …}` with
what `helm template` makes of it by file, or `{"error": …}`; both with the messages of `helm lint`.
"""

import json
import sys

import helm_python

from tests.helpers.paths import ROOT

CHART = ROOT / "deploy" / "helm" / "rebaser"


def main() -> None:
    asked = json.load(sys.stdin)
    found = helm_python.lint(CHART, asked["values"], strict=True)
    answer = {"lint": [message["error"] for message in found["messages"]]}
    try:
        with helm_python.Chart.load(CHART) as chart:
            chart.validate_schema(asked["values"])
            answer["files"] = chart.render(
                asked["values"], name=asked["release"], namespace=asked["namespace"]
            )
    except helm_python.HelmError as error:
        answer["error"] = str(error)
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
