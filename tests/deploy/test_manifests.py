"""What deploy/ says fits together, fits what the daemon does, and is what Kubernetes takes."""

import re
import subprocess
import sys
import tomllib
from configparser import RawConfigParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.settings.settings import Settings, unknown_variables
from tests.deploy.manifests import (
    DEPLOY,
    KUBERNETES,
    ROOT,
    SCALED_OBJECT,
    compose,
    documents,
    environment,
    kubernetes,
    of_kind,
    rebaser,
    service_variables,
)
from tests.helpers.deployment import deployed
from tests.helpers.nats_process import NatsServer, running

KUBERNETES_VERSION = "1.32"
WRITABLE = ("/var/lib/rebaser", "/tmp")  # noqa: S108 - in a container
VARIABLE = re.compile(r"\bREBASER_[A-Z_]+\b")
NOT_OURS = {"REBASER_REQUESTS", "REBASER_TASKS", "REBASER_COMMITS", "REBASER_BATCHES",
            "REBASER_OPS_TOKEN"}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "resource"),
    [(f, r) for f, r in kubernetes() if r["kind"] != "ScaledObject"],
    ids=lambda each: each.stem if isinstance(each, Path) else each["kind"],
)
def test_kubernetes_knows_every_field(file: Path, resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, KUBERNETES_VERSION, strict=True)


def test_every_file_is_in_a_kustomization() -> None:
    for kustomization in KUBERNETES.rglob("kustomization.yaml"):
        [told] = documents(kustomization)
        files = {f.name for f in kustomization.parent.glob("*.yaml")} - {kustomization.name}
        assert files == {name for name in told["resources"] if not name.startswith("..")}


def test_every_variable_is_a_setting() -> None:
    files = [
        f
        for f in DEPLOY.rglob("*")
        if f.suffix in {".yaml", ".service"} and f.parent != DEPLOY / "nats"
    ]
    named = set().union(*(VARIABLE.findall(f.read_text()) for f in [*files, ROOT / "Dockerfile"]))
    settings = named - NOT_OURS

    assert unknown_variables(dict.fromkeys(settings, "")) == []
    for name in settings:
        _, *path = name.removeprefix("REBASER_").lower().split("__")
        group = Settings.model_fields[name.removeprefix("REBASER_").lower().split("__")[0]]
        assert not path or path[0] in group.annotation.model_fields, name


PREFIX = "REBASER_"
OF_THE_CLUSTER = ("NATS__URL", "NATS__MONITORING", "NATS__REPLICAS", "OPS__HOST", "OPS__PORT",
                  "NATS__USER", "NATS__PASSWORD", "INSTANCE_ID", "SHUTDOWN_GRACE")  # fmt: skip
"""Settings that say where the pod's neighbours are, of which none is here."""


@pytest.mark.parametrize("folder", ["base", "overlays/connect", "overlays/keda"])
async def test_a_daemon_starts_with_the_environment_that_its_pod_has(
    folder: str, tmp_path: Path
) -> None:
    """Also where the Services of others have names that begin as ours do, in all three forms."""
    ports = [{"port": 80, "name": "web-ui"}]
    foreign = service_variables("rebaser", ports) | service_variables("rebaser-ops--page", ports)
    pod = environment(KUBERNETES / folder) | foreign
    variables = {name.removeprefix(PREFIX): value for name, value in pod.items()}

    with running(NatsServer(tmp_path / "nats")) as server:
        async with deployed(server, tmp_path) as deployment:
            daemon = await deployment.start(
                **{name: value for name, value in variables.items() if name not in OF_THE_CLUSTER}
            )

            assert daemon.said("ready")


def test_pods_are_not_told_of_services_by_variables() -> None:
    for deployment in of_kind("Deployment"):
        assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_what_a_pod_may_take_is_bounded_on_a_node_of_any_size() -> None:
    """Spark takes a process for each core, and `local[*]` is all of the node's."""
    for deployment in of_kind("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["containers"][0]["resources"]["limits"]["memory"]
        assert all(v["emptyDir"]["sizeLimit"] for v in pod["volumes"] if "emptyDir" in v)
    [spark] = [d for d in of_kind("Deployment") if d["metadata"]["name"] == "rebaser-spark"]
    arguments = spark["spec"]["template"]["spec"]["containers"][0]["args"]
    masters = [environment(KUBERNETES / "base")["REBASER_SPARK__MASTER"]]
    masters += [a.removeprefix("spark.master=") for a in arguments if "spark.master" in a]
    assert [re.fullmatch(r"local\[\d+\]", master) is not None for master in masters] == [True] * 2


def test_servers_of_nats_take_the_accounts_with_passwords_of_a_secret() -> None:
    [values] = documents(DEPLOY / "nats/helm-values.yaml")
    wanted = set(re.findall(r"\$(NATS_\w+)", (DEPLOY / "nats/accounts.conf").read_text()))
    env = values["container"]["env"]

    assert values["config"]["merge"]["$include"] == "accounts.conf"
    assert wanted == {name for name, value in env.items() if "valueFrom" in value}
    assert env["GOMEMLIMIT"] < values["container"]["merge"]["resources"]["limits"]["memory"]


def test_stopping_a_rebaser_allows_its_shutdown_grace() -> None:
    grace = Settings.model_fields["shutdown_grace"].default.total_seconds()
    unit = RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read(DEPLOY / "systemd/rebaser.service")

    given = [
        rebaser()["spec"]["terminationGracePeriodSeconds"],
        int(compose()["services"]["rebaser"]["stop_grace_period"].removesuffix("s")),
        int(unit["Service"]["TimeoutStopSec"]),
    ]

    assert all(seconds >= grace + 10 for seconds in given), "and to close what it has open"


def test_no_container_is_root_or_writes_outside_its_volumes() -> None:
    for deployment in of_kind("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        [container] = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {m["mountPath"] for m in container["volumeMounts"]} == set(WRITABLE)
    for name in ("rebaser", "spark"):
        service = compose()["services"][name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


STAGES = {
    stage.split()[2]: stage
    for stage in re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
}
"""Each stage of the Dockerfile by its name."""


def test_images_list_their_content_report_their_health_and_run_without_root() -> None:
    base = STAGES["base"]
    [sbom] = re.findall(r'rebaser\.sbom="([^"]+)"', base)
    [probe] = re.findall(r'HEALTHCHECK.*\n  CMD \["python3", "-m", "([\w.]+)"\]', base)

    assert find_spec(probe)
    assert "STOPSIGNAL SIGTERM" in base
    for image, application in (("thin", "application-thin"), ("daemon", "application")):
        assert f"--output-file {sbom}" in STAGES[application]
        assert f"COPY --from={application} /opt/app" in STAGES[image]
        assert re.findall(r"^USER (.+)", base + STAGES[image], re.MULTILINE)[-1] == "10001:10001"
        labels = re.findall(r"opencontainers\.image\.(\w+)", base + STAGES[image])
        assert {"version", "revision", "source", "licenses"} <= {*labels}


def test_a_change_of_ours_leaves_the_layer_of_what_others_wrote() -> None:
    assert re.findall(r"^COPY (\S+)", STAGES["dependencies"], re.MULTILINE) == [
        "deploy/requirements.lock"
    ]


def test_images_are_made_of_all_requirements_by_their_hashes() -> None:
    """`make lock` makes the file anew, once pyproject.toml asks for something else."""
    lock = (DEPLOY / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["cli"], *extras["server"], *extras["tracing"]]

    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        assert name == "rebaser" or locked[name] in requirement.specifier, requirement
    assert lock.count("==") < lock.count("--hash=sha256:")


FORMS = {
    ".github/workflows/*.yaml": "vendor.github-workflows",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "vendor.github-issue-forms",
    "deploy/compose.yaml": "vendor.compose-spec",
}


@pytest.mark.parametrize("pattern", FORMS)
def test_files_for_others_programs_have_the_form_that_these_take(pattern: str) -> None:
    """Compose's as `docker compose config` looks at it, but for what is filled in."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", FORMS[pattern]]
    files = sorted(ROOT.glob(pattern))
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)

    assert files
    assert done.returncode == 0, done.stdout + done.stderr


def test_selectors_match_existing_pods() -> None:
    labels = {d["spec"]["template"]["metadata"]["labels"]["app"] for d in of_kind("Deployment")}
    selectors = [
        *(p["spec"]["podSelector"]["matchLabels"] for p in of_kind("NetworkPolicy")),
        *(b["spec"]["selector"]["matchLabels"] for b in of_kind("PodDisruptionBudget")),
        *(s["spec"]["selector"] for s in of_kind("Service")),
    ]
    assert {selector["app"] for selector in selectors} == labels == {"rebaser", "rebaser-spark"}


def test_keda_watches_the_consumer_that_all_rebasers_share() -> None:
    [scaled] = documents(SCALED_OBJECT)
    [trigger] = scaled["spec"]["triggers"]
    told = trigger["metadata"]

    assert scaled["spec"]["scaleTargetRef"]["name"] == "rebaser"
    assert (told["stream"], told["consumer"]) == (Subjects().tasks_stream, TASKS_CONSUMER)
    host, _, port = told["natsServerMonitoringEndpoint"].partition(":")
    assert re.fullmatch(r"nats-headless\.[\w-]+\.svc", host), "KEDA asks from its own namespace"
    assert port == "8222"
    assert int(told["lagThreshold"]) < Settings.model_fields["concurrency"].default


def test_compose_asks_for_secrets_and_shows_nothing_beyond_this_machine() -> None:
    services = compose()["services"]
    wanted = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose.yaml").read_text()))
    example = (DEPLOY / "example.env").read_text()

    assert set(re.findall(r"^(\w+)=", example, re.MULTILINE)) >= wanted
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    mounted = [v.split(":")[0] for s in services.values() for v in s.get("volumes", [])]
    assert all((DEPLOY / name).exists() for name in mounted if name.startswith("."))
